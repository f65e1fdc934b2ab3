"""Faults of a hub, of what stands before it, and of tokens: each is one line with its class, and nothing is lost."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import huggingface_hub.constants
import pytest
from huggingface_hub import close_session

from gateau_dagster.config import LongSftConfig, ModelConfig
from gateau_dagster.data.index import cached_index
from gateau_dagster.errors import TransientError
from gateau_dagster.features.publish.hub import hub_token, publish_files
from gateau_dagster.models.model_digest import check_downloadable
from tests.data.hub_server import Given, hub_server
from tests.data.inputs import explicit, jsonl
from tests.kit.error_codes import refused
from tests.kit.hub_writing import TOKEN, Fault, Hub, Repository, hub

__all__ = ["hub"]
NAME = "team/selection"
FILES = {"README.md": b"# card", "data/selected.parquet": b"rows"}
INFO, CREATE = f"GET /api/datasets/{NAME}", "POST /api/repos/create"
YAML, MODES = "POST /api/validate-yaml", f"POST /api/datasets/{NAME}/preupload"
BATCH, COMMIT = f"POST /datasets/{NAME}.git/info/lfs", f"POST /api/datasets/{NAME}/commit"
PAGE = b"<!doctype html><html><head><style>a{}</style><title>Sign in</title></head><body>to Example Corp</body></html>"
EXPIRED = b"<?xml version='1.0'?><Error><Code>AccessDenied</Code><Message>Request has expired</Message></Error>"


def of_file(status: int, words: str) -> tuple[int, bytes]:
    """Return an LFS batch answer of success that names an error of a file."""
    error = {"oid": "0" * 64, "size": 4, "error": {"code": status, "message": words}}
    return 200, json.dumps({"transfer": "basic", "objects": [error]}).encode()


WRITING: list[tuple[str, str, Fault, str, bool, str]] = [
    # request, fault, code, whether it may pass, words of the message
    *(
        (f"page for {request}", request, (200, PAGE), "hub.answer", False, "Sign in to Example Corp")
        for request in (INFO, CREATE, YAML, MODES, BATCH, COMMIT)
    ),
    ("object for info", INFO, (200, b"{}"), "hub.answer", False, "{}"),
    ("null for info", INFO, (200, b"null"), "hub.answer", False, "null"),
    ("info without a revision", INFO, (200, b'{"id": "team/selection", "sha": null}'), "hub.answer", False, "sha"),
    ("list for create", CREATE, (200, b"[]"), "hub.answer", False, r"\[\]"),
    ("text for yaml", YAML, (200, b'"fine"'), "hub.answer", False, "fine"),
    ("nothing for modes", MODES, (200, b""), "hub.answer", False, "empty"),
    ("modes of no file", MODES, (200, b'{"files": [null]}'), "hub.answer", False, "null"),
    ("cut JSON for the batch", BATCH, (200, b'{"objects": ['), "hub.answer", False, "no JSON"),
    ("null for the commit", COMMIT, (200, b"null"), "hub.answer", False, "null"),
    ("commit without a SHA", COMMIT, (200, b'{"commitUrl": "u", "commitOid": "?"}'), "hub.answer", False, "commitOid"),
    ("gateway before create", CREATE, (502, PAGE), "hub.unavailable", True, "502"),
    ("gateway before yaml", YAML, (503, PAGE), "hub.unavailable", True, "503"),
    ("gateway before the commit", COMMIT, (504, PAGE), "hub.unavailable", True, "504"),
    ("proxy that wants a login", INFO, (407, PAGE), "hub.unavailable", True, "407"),
    ("no such address", CREATE, (404, PAGE), "publish.refused", False, "404"),
    ("page for a refusal", YAML, (403, PAGE), "publish.refused", False, "403"),
    ("null for a refusal", COMMIT, (403, b"null"), "publish.refused", False, "403"),
    ("full account", BATCH, of_file(403, "storage limit reached"), "publish.refused", False, "storage limit reached"),
    ("too large a file", BATCH, of_file(413, "above 50 GB"), "publish.unaccepted", False, "above 50 GB"),
    ("file without a reason", BATCH, of_file(0, ""), "publish.unaccepted", False, "no reason given"),
    ("failed store", BATCH, of_file(500, "the disk is gone"), "hub.unavailable", True, "the disk is gone"),
    ("limit for a file", BATCH, of_file(429, "slow down"), "hub.unavailable", True, "429"),
    ("expired address", "PUT", (403, EXPIRED), "hub.unavailable", True, "Request has expired"),
    ("store that takes no file", "PUT", (400, b"<Error>EntityTooLarge</Error>"), "hub.unavailable", True, "400"),
    ("page for an upload", "PUT", (200, PAGE), "publish.unaccepted", False, "LFS object of data/selected.parquet"),
    ("unpaid", COMMIT, (402, b'{"error": "no quota left"}'), "publish.refused", False, "no quota left"),
]


def published(folder: Path, token: str = TOKEN) -> str:
    for name, content in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    own = {*FILES}
    return publish_files(NAME, folder, private=True, summary="all", own=own, mark="card", token=token).sha


@pytest.mark.parametrize(
    ("request_", "fault", "code", "passes", "words"), [row[1:] for row in WRITING], ids=[row[0] for row in WRITING]
)
def test_a_fault_while_writing_is_one_line_and_the_next_upload_is_whole(
    request_: str, fault: Fault, code: str, passes: bool, words: str, hub: Hub, tmp_path: Path
) -> None:
    if request_ != CREATE:
        hub.repositories[NAME] = Repository(private=True)
    hub.faults = {request_: [fault] * 9}
    with refused(code, rf"{NAME}.*{words}") as found:
        published(tmp_path)
    assert isinstance(found.value, TransientError) == passes and "\n" not in str(found.value)
    assert all(len(each.commits) == 1 for each in hub.repositories.values()), "nobody sees what is not complete"
    hub.faults = {}
    assert published(tmp_path) == hub.repositories[NAME].sha
    assert hub.repositories[NAME].files.items() >= FILES.items() and len(hub.repositories[NAME].commits) == 2


@pytest.mark.parametrize(
    ("answer", "code"),
    [((200, b"{}"), "hub.answer"), ((200, PAGE), "hub.answer"), ((403, b'{"error": "no"}'), "publish.refused")],
)
def test_the_client_of_large_files_is_not_left_alone_with_a_wrong_answer(
    answer: tuple[int, bytes], code: str, hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would ask again for minutes."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_DISABLE_XET", False)
    hub.repositories[NAME] = Repository(private=True)
    hub.faults = {f"GET /api/datasets/{NAME}/xet-write-token": [answer]}
    with refused(code, NAME):
        published(tmp_path)
    assert len([each for each in hub.received if "xet" in each]) == 1


DATA, MODEL = "lab/plain", "lab/model"
Read = Callable[[], object]


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[dict[str, Given]]:
    """Yield what a hub with a data set of two samples answers instead, by a pattern of the request."""
    answers: dict[str, Given] = {}
    content = {DATA: {"long.jsonl": jsonl(explicit("a"), explicit("b"))}}
    with hub_server(content, answers) as address:
        monkeypatch.setenv("HF_ENDPOINT", address)
        for name, value in {
            "ENDPOINT": address,
            "HUGGINGFACE_CO_URL_TEMPLATE": address + "/{repo_id}/resolve/{revision}/{filename}",
            "HF_HUB_OFFLINE": False,
            "HF_HUB_CACHE": str(tmp_path / "hub"),
        }.items():  # huggingface_hub reads them from the environment only when it is imported
            monkeypatch.setattr(huggingface_hub.constants, name, value)
        monkeypatch.setattr("time.sleep", lambda _: None)
        yield answers
    close_session()


def samples(folder: Path, name: str = DATA) -> list[str]:
    config = LongSftConfig(path=name, shards=1)
    return sorted(cached_index(config, folder, folder / "cache").accepted["sample_id"])


def model(_: Path) -> None:
    check_downloadable(ModelConfig(path=MODEL), place="models.long")


def page(status: int = 200, **headers: str) -> Given:
    return status, PAGE, {"Content-Type": "text/html; charset=utf-8", **headers}


def plain(body: bytes, status: int = 200) -> Given:
    return status, body, {"Content-Type": "application/json"}


READING: list[tuple[str, Callable[[Path], object], str, Given, str, bool, str]] = [
    # what reads, request, answer, code, whether it may pass, words of the message
    ("page for a data set", samples, "GET /api/datasets", page(), "hub.answer", False, "Sign in to Example Corp"),
    (
        "redirect to a login",
        samples,
        f"GET /api/datasets/{DATA}",
        page(302, Location="/login"),
        "hub.answer",
        False,
        "page",
    ),
    ("object for a data set", samples, "GET /api/datasets/[^/]+/[^/]+$", plain(b"{}"), "hub.answer", False, "{}"),
    ("null for its files", samples, "/tree/", plain(b"null"), "hub.answer", False, "null"),
    ("object for its files", samples, "/tree/", plain(b"{}"), "hub.answer", False, "{}"),
    ("text for its files", samples, "/tree/", plain(b"fine"), "hub.answer", False, "fine"),
    ("page for a file", samples, "/resolve/", page(), "hub.answer", False, "long.jsonl was answered with a web page"),
    ("refusal", samples, "GET /api/datasets", page(403), "hub.refused", False, "HF_TOKEN"),
    ("wrong token", samples, "GET /api/datasets", page(401), "hub.refused", False, "401"),
    ("another server", samples, "GET /api/datasets", page(404), "hub.answer", False, "404"),
    ("null for a refusal", samples, "GET /api/datasets", plain(b"null", 403), "hub.refused", False, "403"),
    ("gateway", samples, "GET /api/datasets", page(502), "hub.unavailable", True, "502"),
    ("limit", samples, "GET /api/datasets", plain(b"{}", 429), "hub.unavailable", True, "429"),
    ("page for a model", model, "/resolve/", page(), "hub.answer", False, "config.json was answered with a web page"),
    ("another server for a model", model, "/resolve/", page(404), "hub.answer", False, "404"),
    ("refusal of a model", model, "/resolve/", page(403), "hub.refused", False, "403"),
]


@pytest.mark.parametrize(
    ("read", "request_", "answer", "code", "passes", "words"),
    [row[1:] for row in READING],
    ids=[row[0] for row in READING],
)
def test_a_fault_while_reading_is_one_line_and_is_not_remembered(
    read: Callable[[Path], object],
    request_: str,
    answer: Given,
    code: str,
    passes: bool,
    words: str,
    given: dict[str, Given],
    tmp_path: Path,
) -> None:
    given[request_] = answer
    given["/login$"] = page()
    with refused(code, words) as found:
        read(tmp_path)
    assert isinstance(found.value, TransientError) == passes and "\n" not in str(found.value)
    given.clear()
    assert samples(tmp_path) == ["a", "b"]


@pytest.mark.parametrize(
    ("token", "words"),
    [
        ("hf_\u00e4bcdefghij", r"character 4 is U\+00E4"),
        ("hf_abc def", "character 7 is white space"),
        ("hf_abc\rdef", "character 7 is a line break"),
        ('"hf_abcdef"', "character 1 is a quotation mark"),
        ("\u201chf_abcdef\u201d", r"U\+201C"),
        ("Bearer hf_abcdef", "character 7"),
    ],
)
def test_a_token_that_cannot_be_sent_is_named_before_a_request(
    token: str, words: str, given: dict[str, Given], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", token)
    given["."] = page(500)
    # The client itself removes line breaks.
    reading = [] if "\r" in token else [lambda: samples(tmp_path), lambda: model(tmp_path)]
    for read in (hub_token, *reading):
        with refused("hub.token", words) as found:
            read()
        assert "abc" not in str(found.value) and "\n" not in str(found.value)


@pytest.mark.parametrize("address", ["huggingface.co", "http://127.0.0.1:9", "ftp://127.0.0.1", "http://"])
def test_an_address_without_a_hub_is_one_line(
    address: str, given: dict[str, Given], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", address)
    monkeypatch.setenv("HF_ENDPOINT", address)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    for use in (lambda: samples(tmp_path), lambda: published(tmp_path / "files")):
        with refused("hub.unavailable", "HF_ENDPOINT") as found:
            use()
        assert isinstance(found.value, TransientError) and "\n" not in str(found.value)
