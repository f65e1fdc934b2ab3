"""Secrets: what is masked in messages, logs and stored failures, and what stays."""

import base64
import logging
import subprocess
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateau_dagster import errors
from gateau_dagster.errors import (
    GateauError,
    redact_exception,
    redact_output,
    redacted,
    secret_found,
    secret_variable_named,
)
from gateau_dagster.pipeline.project import load_project

KEY = "kx/9+Qwerty-0123456789zyxw"
HOOK = "https://hooks.example/services/T012AB34CD/b56EF78GH90"


def _is_plausible(key: str) -> bool:
    return any(letter.isdigit() for letter in key) and len({*key}) >= 4 and not key.isupper()


@pytest.fixture(autouse=True)
def secrets(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A key that the configuration names, and others that are known by their names."""
    monkeypatch.setattr(errors, "_variables", {"JUDGE"})
    monkeypatch.setattr(errors, "_values", set())
    monkeypatch.setenv("JUDGE", KEY)
    monkeypatch.setenv("TEAM_WEBHOOK", HOOK)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "/slash/AKeyOfS3thatBegins")
    monkeypatch.setenv("AWS_WEB_IDENTITY_TOKEN_FILE", "/var/run/token-file")
    monkeypatch.setenv("AWS_REGION", "eu-west-17")
    monkeypatch.setenv("DATABASE", "postgresql://me:s3cret%2Fpassword@host/db")
    yield


@pytest.mark.parametrize(
    "secret",
    [
        KEY,
        KEY[3:11],
        KEY[-8:],
        quote(KEY, safe=""),
        base64.b64encode(KEY.encode()).decode(),
        base64.b64encode(f"user:{KEY}".encode()).decode()[8:],
        f"{KEY[:4]}****{KEY[-4:]}",
        f"{KEY[:3]}…",
        f"...{KEY[-4:]}",
        HOOK,
        "b56EF78GH90",
        "/slash/AKeyOfS3thatBegins",
        "s3cret%2Fpassword",
        "s3cret/password",
    ],
)
def test_secrets_and_parts_of_eight_characters_are_masked(secret: str) -> None:
    shown = redacted(f"the server says: <{secret}>, again {secret}")
    assert "***" in shown and shown.startswith("the server says: <***")
    assert not any(secret[place : place + 8] in shown for place in range(max(1, len(secret) - 7)))


@pytest.mark.parametrize(
    "text", ["hooks.example and services", "eu-west-17", "/var/run/token-file", "well... then", "a **bold** word", "…"]
)
def test_what_is_no_secret_stays(text: str) -> None:
    assert redacted(text) == text


def test_a_key_of_a_needle_is_no_secret_and_a_pasted_one_is(tmp_path: Path) -> None:
    given = """
long_sft: {path: long.jsonl}
models: {short: {path: a, context: window}, long: {path: b}}
evaluation:
  benchmarks: [needle]
  needle: {pairs: [{key: instrument, values: [tuba, viola]}]}
  judge: {base_url: "http://x/v1", model: m, key: JUDGE, extra_body: {api_key: qwsxzaplmokn}}
"""
    (file := tmp_path / "gateau.yaml").write_text(given)
    load_project(file)
    assert redacted("an instrument and qwsxzaplmokn") == "an instrument and ***"


@given(before=st.text(), after=st.text(), begin=st.integers(0, len(KEY) - 8), size=st.integers(8, len(KEY)))
def test_no_text_around_it_hides_a_part(before: str, after: str, begin: int, size: int) -> None:
    part = KEY[begin : begin + size]
    assert part not in redacted(before + part + after)


@pytest.mark.parametrize("holds", ["variable", "pasted", "password of an address"])
@pytest.mark.parametrize(
    ("key", "is_secret"),
    [
        ("qwsxzaplmokn", True),  # letters alone
        ("abcd efgh ijkl mnop", True),
        ("sunshine", True),
        ("correct-horse-battery-staple", True),
        ("my-secret-key-7", True),
        ("token-abc123", True),
        ("Password7", True),
        ("83719046", True),
        ("password", False),
        ("Your-API-key", False),
        ("not-needed", False),
        ("change_me_please here", True),
        ("set the environment variable", False),
        ("temperature", False),
        ("postgres", False),
        ("00000000", False),
    ],
)
def test_a_plausible_key_is_masked_and_a_common_word_is_not(
    key: str, is_secret: bool, holds: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if holds == "variable":
        monkeypatch.setenv("JUDGE", key)
    elif holds == "pasted":
        secret_found(key)
    else:
        monkeypatch.setenv("DATABASE", f"postgresql://me:{quote(key)}@host/db")
    text = f"the password, the temperature, the environment variable, a postgres server: <{key}>"
    assert redacted(text) == (text.replace(key, "***") if is_secret else text)


@pytest.mark.parametrize(
    ("key", "is_secret"), [("abc-1", True), ("a1b2", True), ("s3cr3t!", True), ("1234", False), ("EMPTY", False)]
)
def test_a_short_key_is_masked_where_it_is_neither_a_word_nor_a_number(
    key: str, is_secret: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JUDGE", key)
    assert redacted(f"12345 tokens of EMPTY: {key}") == f"12345 tokens of EMPTY: {'***' if is_secret else key}"


@given(key=st.text(st.characters(codec="ascii", categories=["L", "N", "P"]), min_size=8).filter(_is_plausible))
def test_no_key_with_a_digit_is_taken_for_words(key: str) -> None:
    errors._values.clear()
    secret_found(key)
    assert key not in redacted(f"<{key}>")


class _Stubborn(Exception):
    def __str__(self) -> str:
        return f"kept {KEY}"


def _noted() -> Exception:
    error = ValueError("noted")
    error.add_note(f"asked with {KEY}")
    return error


@pytest.mark.parametrize(
    "cause",
    [
        ValueError(f"told {KEY}"),
        _Stubborn(),
        _noted(),
        ExceptionGroup(KEY, [ValueError("fine")]),
        ExceptionGroup("several", [ValueError(KEY), ExceptionGroup("more", [_Stubborn()])]),
    ],
)
def test_the_causes_of_a_failure_tell_no_secret(cause: Exception) -> None:
    failure = GateauError("data.missing", f"failed: {KEY}")
    failure.__cause__ = cause
    shown = redact_exception(failure)
    assert shown is failure and KEY not in str(failure)
    trace = "".join(traceback.format_exception(failure))
    assert KEY not in trace and "failed: ***" in trace and "***" in trace.replace("failed: ***", "")


def test_causes_that_go_round_are_redacted_once() -> None:
    first, second = ValueError(f"first {KEY}"), ValueError(f"second {KEY}")
    first.__cause__, second.__context__ = second, first
    assert str(redact_exception(first)) == "first ***" and str(second) == "second ***"


SCRIPT = """
import threading
from gateau_dagster.errors import redact_output

def work():
    raise ValueError("asked with " + "kx/9+Qwerty" + "-0123456789zyxw")

redact_output()
thread = threading.Thread(target=work)
thread.start()
thread.join()
work()
"""


def test_what_a_child_process_does_not_catch_tells_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GATEAU_SECRET_VARIABLES", "")
    secret_variable_named("JUDGE")
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=False)
    assert done.returncode == 1 and done.stderr.count("ValueError: asked with ***\n") == 2
    assert KEY not in done.stderr


def test_logs_tell_no_secret(caplog: pytest.LogCaptureFixture) -> None:
    before = logging.getLogRecordFactory()
    try:
        redact_output()
        redact_output()
        try:
            raise ValueError(KEY)
        except ValueError:
            logging.getLogger("some.library").exception("asked with %s and %s", KEY, {"key": KEY})
    finally:
        logging.setLogRecordFactory(before)
    assert KEY not in caplog.text and "asked with ***" in caplog.text
