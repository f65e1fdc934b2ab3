"""Addresses: one spelling of each, nothing that keeps nothing, and no credentials, in no message either."""

import traceback
from pathlib import Path

import pytest

from gateau_dagster.config import Config
from gateau_dagster.config.load import parse_config
from gateau_dagster.errors import GateauError, redacted
from gateau_dagster.pipeline.project import load_project
from tests.kit.error_codes import refused

KEY, SECRET, TOKEN = "AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY", "hf_AbCdEfGhIjKlMnOpQrStUvWx"
PLACES = {
    "storage.root": "storage:\n  root: {}\nlong_sft: {{path: a}}\n",
    "long_sft.path": "long_sft:\n  path: {}\n",
    "long_sft.path.1": "long_sft:\n  path: [a,\n    {}]\n",
    "short_chat.path": "short_chat:\n  path: {}\nlong_sft: {{path: a}}\n",
    "models.short.path": "models:\n  short: {{path: {}}}\nlong_sft: {{path: a}}\n",
    "models.made.homologous.texts": "models:\n  made: {{path: 'homologous:short', homologous: {{texts: {}}}}}\n"
    "  short: {{path: a}}\nlong_sft: {{path: a}}\n",
}


def parsed(place: str, address: str) -> Config:
    return parse_config(PLACES[place].format(f"'{address}'"), folder=Path("/project"))


def refusal(text: str) -> str:
    with pytest.raises(GateauError) as caught:
        parse_config(text, folder=Path("/project"))
    everything = "".join(traceback.format_exception(caught.value))
    assert all(part not in everything for part in (KEY, SECRET, SECRET.split("/", maxsplit=1)[0], TOKEN, "password"))
    return str(caught.value)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(
    "address",
    [
        f"s3://{KEY}:{SECRET}@bucket/prefix",
        f"s3://{KEY}:{SECRET}/bucket",
        f"s3a://{KEY}@bucket",
        f"S3://{KEY}:{SECRET}@bucket",
        f"hf://user:{TOKEN}@datasets/owner/name",
        f"https://user:{TOKEN}@huggingface.co/datasets/owner/name",
        f"simplecache::s3://{KEY}:{SECRET}@bucket",
        f"{KEY}:{SECRET}@s3://bucket",
        f"{KEY}:{SECRET}@host:9000/bucket",
        f"s3://bucket/a.jsonl?X-Amz-Credential={KEY}&X-Amz-Signature={SECRET}",
        f"s3://bucket/a.jsonl?token={TOKEN}",
        f"hf://datasets/owner/name/a.jsonl?download=true&token={TOKEN}",
    ],
)
def test_credentials_are_refused_by_their_line_alone(place: str, address: str) -> None:
    message = refusal(PLACES[place].format(f"'{address}'"))
    (line,) = message.splitlines()[1:]
    number = 3 if place.endswith(".1") else 2
    assert line.startswith(f"  gateau.yaml:{number}: {place}: ")
    assert "environment" in line or "is not supported here" in line


@pytest.mark.parametrize(
    "text",
    [
        f"storage: s3://{KEY}:{SECRET}@bucket\nlong_sft: {{path: a}}\n",
        f"storage: {{root: [s3://{KEY}:{SECRET}@bucket]}}\nlong_sft: {{path: a}}\n",
        f"storage: {{root: {{key: {KEY}, secret: {SECRET}, my_secret: '{SECRET}'}}}}\nlong_sft: {{path: a}}\n",
        f"long_sft: {{path: {{url: 'hf://datasets/o/n', token: {TOKEN}}}}}\n",
        f"long_sft: {{path: a, {TOKEN}: 3}}\n",
        f"s3://{KEY}:{SECRET}@bucket: 3\nlong_sft: {{path: a}}\n",
        f"HF_TOKEN: {TOKEN}\nlong_sft: {{path: a}}\n",
        f"scoring: {TOKEN}\nlong_sft: {{path: a}}\n",
        f"long_sft: {{path: a}}\nscoring: {{max_length: {TOKEN}}}\n",
        f"long_sft: {{path: 's3://{KEY}:{SECRET}@bucket}}\n",
        f"long_sft: {{path: [s3://{KEY}:{SECRET}@bucket, *x]}}\n",
    ],
)
def test_secrets_in_the_wrong_place_are_not_shown(text: str) -> None:
    assert "gateau.yaml:" in refusal(text)


def test_a_configuration_at_an_address_is_refused_unseen(monkeypatch: pytest.MonkeyPatch) -> None:
    address = f"s3://{KEY}:{SECRET}@bucket/gateau.yaml"
    with refused("config.unreadable"):
        load_project(address)
    monkeypatch.setenv("GATEAU_CONFIG", address)
    with refused("config.unreadable"):
        load_project()


def test_an_address_of_a_file_is_its_path() -> None:
    for address in ("file:///data/a%20b", "FILE:///data/a%20b", "file://localhost/data/a%20b", "file:/data/a%20b"):
        assert parsed("storage.root", address).located_root == "/data/a b"
        assert parsed("long_sft.path.1", address).long_sft.path == ["a", "/data/a b"]
        assert parsed("models.short.path", address).models["short"].path == "/data/a b"


@pytest.mark.parametrize(
    ("place", "address", "written"),
    [
        ("storage.root", "s3://bucket", "s3://bucket"),
        ("storage.root", "s3a://bucket/a@b/c:d", "s3://bucket/a@b/c:d"),
        ("storage.root", "S3://Bucket/prefix", "s3://Bucket/prefix"),
        ("storage.root", "s3://arn:aws:s3:eu-west-1:123456789012:accesspoint/name/prefix", None),
        ("storage.root", "~/store", None),
        ("long_sft.path", "s3://bucket/date=?/part-*.jsonl", None),
        ("long_sft.path", "s3://bucket/a.jsonl?versionId=3HL4kqtJlcpXroDTDmJ", None),
        ("long_sft.path", "hf://datasets/owner/name@revision/a.jsonl", None),
        ("long_sft.path", "owner/name", None),
        ("long_sft.path", "data/12:30 @home.jsonl", None),
        ("long_sft.path", "/data/a:b@c.jsonl", None),
        ("models.short.path", "owner/name", None),
    ],
)
def test_what_can_be_used_stays(place: str, address: str, written: str | None) -> None:
    config = parsed(place, address)
    found = {
        "storage.root": config.storage.root,
        "long_sft.path": config.long_sft.path,
        "models.short.path": config.models["short"].path if "short" in config.models else None,
    }
    assert found[place] == (written or address)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ('Could not reach "http://user:pass/w@host:9000/bucket"', 'Could not reach "http://***@host:9000/bucket"'),
        ("http://host:9000/bucket/a@b", "http://host:9000/bucket/a@b"),
        (f"https://{TOKEN}@huggingface.co", "https://***@huggingface.co"),
        (f"GET /a?X-Amz-Signature={SECRET}&list-type=2", "GET /a?***&list-type=2"),
        (f"Bearer {TOKEN}", "Bearer ***"),
        ("hf://datasets/owner/name@revision/a", "hf://datasets/owner/name@revision/a"),
        ("s3://bucket/a@b", "s3://bucket/a@b"),
        ("mail a@b.example, see https://host/a:b@c", "mail a@b.example, see https://host/a:b@c"),
    ],
)
def test_messages_say_no_secrets(text: str, shown: str) -> None:
    assert redacted(text) == shown
    assert str(GateauError("data.missing", text)) == shown
