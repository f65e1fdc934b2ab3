"""Secrets: what is masked in messages, logs and stored failures, and what stays."""

import base64
import logging
from collections.abc import Iterator
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateau_dagster import errors
from gateau_dagster.errors import GateauError, redact_exception, redact_logs, redacted

KEY = "kx/9+Qwerty-0123456789zyxw"
HOOK = "https://hooks.example/services/T012AB34CD/b56EF78GH90"


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


@given(before=st.text(), after=st.text(), begin=st.integers(0, len(KEY) - 8), size=st.integers(8, len(KEY)))
def test_no_text_around_it_hides_a_part(before: str, after: str, begin: int, size: int) -> None:
    part = KEY[begin : begin + size]
    assert part not in redacted(before + part + after)


class _Stubborn(Exception):
    def __str__(self) -> str:
        return f"kept {KEY}"


@pytest.mark.parametrize("cause", [ValueError(f"told {KEY}"), _Stubborn()])
def test_the_causes_of_a_failure_tell_no_secret(cause: Exception) -> None:
    failure = GateauError(f"failed: {KEY}")
    failure.__cause__ = cause
    shown = redact_exception(failure)
    assert shown is failure and KEY not in str(failure) and KEY not in str(failure.__cause__)
    assert "***" in str(failure.__cause__)


def test_logs_tell_no_secret(caplog: pytest.LogCaptureFixture) -> None:
    before = logging.getLogRecordFactory()
    try:
        redact_logs()
        redact_logs()
        try:
            raise ValueError(KEY)
        except ValueError:
            logging.getLogger("some.library").exception("asked with %s and %s", KEY, {"key": KEY})
    finally:
        logging.setLogRecordFactory(before)
    assert KEY not in caplog.text and "asked with ***" in caplog.text
