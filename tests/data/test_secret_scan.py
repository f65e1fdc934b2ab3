"""Find secrets in every surrounding that real traces have, and nothing else."""

import json
import random
from collections.abc import Callable, Iterator

import pytest
import secret_table
from hypothesis import given
from hypothesis import strategies as st
from secret_table import KINDS, SURROUNDINGS, harmless_row, row_with

from gateau_dagster.data import secret_scan
from gateau_dagster.data.secret_scan import Finding, secrets_in, secrets_of_rows, secrets_of_text
from gateau_dagster.errors import redacted


@pytest.fixture
def alone() -> Iterator[None]:
    """Scan without the package."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(secret_scan, "SCANNER", "not-installed")
        yield


def made(kind: str, number: int = 0) -> list[str]:
    """Return a secret of each shape of a kind."""
    return [make(random.Random(f"{kind}{number}")) for make in KINDS[kind]]


def body_of(secret: str) -> str:
    """Return the part that must not be shown: without a key's name or an address."""
    return max(secret.replace('"', " ").replace(":", " ").replace("@", " ").split(), key=len)


def test_the_page_of_kinds_and_surroundings_is_current(alone: None) -> None:
    page = secret_table.page()
    assert page == secret_table.PAGE.read_text(encoding="utf-8"), "run: python scripts/secret_table.py"
    assert "missed" not in page.split("## What is not found")[0].split("| --- |")[1]
    assert len(KINDS) >= 15 and len(SURROUNDINGS) >= 14


@pytest.mark.parametrize("kind", KINDS)
def test_a_secret_has_one_hash_in_all_texts_of_one_form_and_is_not_shown(kind: str, alone: None) -> None:
    escaped = [name for name in SURROUNDINGS if name not in {"CRLF", "indented", "quoted mail", "diff", "`grep -n`"}]
    escaped = [name for name in escaped if not name.startswith(("Read", "`cat")) or kind != "private key"]
    for secret in made(kind):
        found = {name: [*secrets_of_rows([row_with(secret, name)])] for name in SURROUNDINGS}
        assert len({each.secret_hash for name in escaped for each in found[name]}) == 1, found
        assert body_of(secret) not in repr(found)


@pytest.mark.parametrize(
    ("surrounding", "field"),
    [
        ("arguments of a call", "conversation.messages[1].tool_calls[0].function.arguments.command"),
        ("JSON in JSON in JSON", "conversation.messages[1].tool_calls[0].function.arguments.body.file.text"),
        ("tool definition", "conversation.tools[0].function.description"),
        ("Read, `1→`", "conversation.messages[2].content"),
        ("`source`", "source"),
        ("after `_`", "context"),
    ],
)
def test_the_innermost_field_is_named(surrounding: str, field: str, alone: None) -> None:
    (secret,) = made("xAI")
    (found,) = secrets_of_rows([{**row_with("", surrounding), "sample_id": "a"}, row_with(secret, surrounding)])
    assert (found.sample, found.field, found.kind) == ("s", field, "key of a service")


def test_an_id_with_a_secret_is_masked_and_a_name_of_a_field_is_not_shown(alone: None) -> None:
    (secret,), private_key = made("GitLab")[:1], made("private key")[0]
    (found,) = secrets_of_rows([row_with(secret, "`sample_id`")])
    assert found == Finding(sample="run-***", field="sample_id", kind="key of a service", secret_hash=found.secret_hash)
    rows = [row_with("", "`sample_id`"), row_with(private_key.replace("\n", "\\n"), "`sample_id`")]
    assert [each.sample for each in secrets_of_rows(rows, "data/scores.parquet")] == ["row 2 of data/scores.parquet"]
    (found,) = secrets_of_rows([{"sample_id": "s", "context": json.dumps({"a": {secret: [secret]}})}])
    assert found.field == "context"


def test_a_text_has_lines(alone: None) -> None:
    (secret,) = made("Google API key")
    escaped = secret.replace("_", "\\_")
    (found,) = secrets_of_text(f"# Card\n\n| {escaped} | 3 |\n", "README.md")
    assert (found.sample, found.field) == ("README.md", "line 3") and secret not in repr(found)


_NESTED: list[Callable[[str], str]] = [
    json.dumps,
    lambda text: json.dumps({"a": [text], "b": "\n"}),
    lambda text: json.dumps(json.dumps(text))[3:],
    lambda text: text.replace("\n", "\\n"),
    lambda text: json.dumps(f"\x1b[31m{text[:5]}\x1b[0m{text[5:]}"),
    lambda text: "".join(f"{number:>6}→{line}\n" for number, line in enumerate(text.split("\n"), start=1)),
    lambda text: "".join(f"src/a.py-{number}-{line}\r\n" for number, line in enumerate(text.split("\n"), start=1)),
]


@given(
    kind=st.sampled_from([*KINDS]),
    number=st.integers(0, 30),
    before=st.text(max_size=20),
    after=st.text(max_size=20).map(lambda text: f" {text}"),
    nested=st.lists(st.sampled_from(_NESTED), max_size=3),
)
def test_no_nesting_hides_a_secret(
    kind: str, number: int, before: str, after: str, nested: list[Callable[[str], str]]
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(secret_scan, "SCANNER", "not-installed")
        for secret in made(kind, number):
            # The line before a key may look like one of its lines, and an AWS key has no distinct shape.
            text = f"{before.replace('-', '')}\n{secret}{after}"
            for nest in nested:
                text = nest(text)
            assert secrets_in(text), text


@pytest.mark.parametrize("number", range(10))
def test_a_trace_without_a_secret_raises_no_alarm(number: int) -> None:
    assert [*secrets_of_rows([harmless_row(number)])] == []


@pytest.mark.parametrize(
    ("text", "is_secret"),
    [
        ("<div class=sk-toggleable__label-arrow>", False),
        ("<div class='sk-toggleable__label-arrow-12 sk-1234'>", False),
        ("AKIAIOSFODNN7EXAMPLE", False),
        ("sk-" + "a1" * 12, True),
        ("hf_" + "x" * 34, False),
        ("redis://:changeme@cache:6379 and https://user:password@host", False),
        ("redis://:${REDIS_PASSWORD}@cache and https://me:DB_PASSWORD@host", False),
        ("redis://:Zk3mm9qT@cache:6379", True),
        ("docker://ubuntu:20.04-slim@sha256:0123", False),
        ("git@github.com:owner/name.git ssh://git@github.com:22/a", False),
        ("-----BEGIN PRIVATE KEY-----\nloadPrivateKeyFromFile()", False),
        ("-----BEGIN RSA PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\n\nMIIEpAIBAAKCAQEA7bq", True),
        ("Private-Lines: 14\nAAABAQCu7dJ8kPq2", True),
    ],
)
def test_documented_examples_are_no_secrets(text: str, is_secret: bool) -> None:
    assert bool(secrets_in(text)) == is_secret, secrets_in(text)


def test_the_package_adds_other_services() -> None:
    pytest.importorskip("kingfisher_sdk", reason="kingfisher-secret-scanner is not installed: make setup")
    letters = random.Random(0).choices(secret_table.LETTERS, k=65)
    key = f"SG.{''.join(letters[:22])}.{''.join(letters[22:])}"
    assert set(secrets_in(f'{{"a": "x\\n{key}"}}')) == {key}


@pytest.mark.parametrize(
    "word",
    [
        "task-3f2b8c1e9d0a4b7f8e6c5d4a3b2c1d0e",
        "disk-0b3f7c1e-1234-5678-9abc-def012345678",
        "risk-or-reward-tradeoff-analysis-2",
        "minsk-2023-conference-report-final",
        "highs_model_status_to_string",
        "gsk_gl_renderer_new_for_display",
        "SLOVAKIANAMBASSADORSHIPS",
        "xai-explainability-methods",
        "hf_hub_download_with_retries",
    ],
)
def test_a_message_keeps_words_that_hold_the_beginning_of_a_key(word: str) -> None:
    assert redacted(f"no file {word}.json") == f"no file {word}.json"


@pytest.mark.parametrize("kind", ["Hugging Face", "Anthropic", "OpenAI", "AWS access key id", "GitHub", "xAI"])
def test_a_message_masks_a_key_behind_a_letter(kind: str) -> None:
    for secret in made(kind):
        assert redacted(f"the server says X{secret} and MY_{secret}") == "the server says X*** and MY_***"
