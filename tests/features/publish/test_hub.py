"""Publish files to a hub: check that there is one commit, nothing is sent twice, and refusals are explained."""

import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from huggingface_hub import close_session

from gateau_dagster.errors import TransientError
from gateau_dagster.features.publish.hub import Revision, hub_token, publish_files
from gateau_dagster.storage import hub_client
from tests.kit.error_codes import refused
from tests.kit.hub_writing import READER, TOKEN, Fault, Hub, Repository, hub
from tests.kit.project import command_environment

__all__ = ["hub"]
NAME = "team/selection"
COMMIT = f"POST /api/datasets/{NAME}/commit"
FILES = {"README.md": b"# card", "data/selected.parquet": b"rows", "data/evidence.parquet": b"more rows"}


def publish(folder: Path, files: dict[str, bytes], *, private: bool = True, token: str = TOKEN) -> Revision:
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return publish_files(NAME, folder, private=private, summary="all", own={*FILES}, mark="card", token=token)


def test_a_private_data_set_gets_one_commit_and_the_same_files_none(hub: Hub, tmp_path: Path) -> None:
    first = publish(tmp_path / "first", FILES)
    made = hub.repositories[NAME]
    assert made.private and len(made.commits) == 2 and first.sha == made.sha
    assert made.files == {".gitattributes": made.commits[0][".gitattributes"], **FILES}
    assert first.url == f"{hub.address}/datasets/{NAME}/tree/{first.sha}"
    assert publish(tmp_path / "first", {}) == first
    assert len(made.commits) == 2 and len(hub.puts) == 2
    made.commits.append({**made.files, "LICENSE": b"theirs"})
    second = publish(tmp_path / "second", {"README.md": b"# new", "data/selected.parquet": b"rows"})
    assert {*made.files} == {".gitattributes", "LICENSE", "README.md", "data/selected.parquet"}
    assert len(made.commits) == 4 and second.sha == made.sha != first.sha
    assert len(hub.puts) == 2, "what has not changed is not sent"


@pytest.mark.parametrize(
    ("fault", "requests"),
    [
        ({COMMIT: [429, 429]}, 3),
        ({"POST /api/repos/create": [429], COMMIT: [412]}, 2),
        ({f"POST /api/datasets/{NAME}/preupload": [503, "cut"]}, 1),
        ({"PUT": ["cut", 500]}, 1),
    ],
    ids=["limited", "another commit", "before", "objects"],
)
def test_a_fault_that_passes_goes_unnoticed(
    fault: dict[str, list[Fault]], requests: int, hub: Hub, tmp_path: Path
) -> None:
    hub.faults = fault
    made = publish(tmp_path, FILES)
    assert hub.repositories[NAME].files.items() >= FILES.items()
    assert len(hub.repositories[NAME].commits) == 2 and made.sha == hub.repositories[NAME].sha
    assert hub.received.count(f"{COMMIT}/main") == requests and not any(fault.values())


def test_the_hub_says_how_long_to_wait_up_to_a_limit(hub: Hub, tmp_path: Path) -> None:
    hub.faults = {COMMIT: [429, 412]}
    publish(tmp_path, FILES)
    assert hub.waits == [60.0, 4.0]


def test_a_commit_that_comes_between_is_read_first(hub: Hub, tmp_path: Path) -> None:
    made = hub.repositories[NAME] = Repository(private=True)
    theirs = {"LICENSE": b"theirs", "README.md": b"old card", "data/evidence.parquet": b"old"}
    hub.faults = {f"POST /api/datasets/{NAME}/preupload": [lambda: made.commits.append({**made.files, **theirs})]}
    publish(tmp_path, {"README.md": b"# card"})
    assert {*made.files} == {".gitattributes", "LICENSE", "README.md"} and len(made.commits) == 3
    assert hub.received.count(f"{COMMIT}/main") == 2


def test_an_answer_that_is_lost_makes_no_second_commit(hub: Hub, tmp_path: Path) -> None:
    hub.faults = {COMMIT: ["lost"]}
    with pytest.raises(TransientError, match=NAME):
        publish(tmp_path, FILES)
    made = hub.repositories[NAME]
    assert publish(tmp_path, {}).sha == made.sha and len(made.commits) == 2


@pytest.mark.parametrize(
    ("fault", "code"),
    [(COMMIT, "hub.unavailable"), ("PUT", "hub.unavailable"), ("POST /api/datasets", "hub.unavailable")],
)
def test_a_fault_that_stays_leaves_no_half(fault: str, code: str, hub: Hub, tmp_path: Path) -> None:
    hub.faults = {fault: [429] * 99}
    with refused(code, NAME):
        publish(tmp_path, FILES)
    assert len(hub.repositories[NAME].commits) == 1, "nobody sees what is not complete"
    hub.faults = {}
    publish(tmp_path, {})
    assert len(hub.repositories[NAME].commits) == 2 and len(hub.puts) == 2


@pytest.mark.parametrize("request_", ["PUT", COMMIT])
def test_a_killed_upload_is_completed_by_the_next_one(request_: str, hub: Hub, tmp_path: Path) -> None:
    for name, content in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(content)
    code = (
        "import sys; from pathlib import Path\n"
        "from gateau_dagster.features.publish.hub import publish_files as publish\n"
        f"publish({NAME!r}, Path({str(tmp_path)!r}), private=True, summary='all', own=[], mark='card', token={TOKEN!r})"
    )
    environment = command_environment(HF_HUB_DISABLE_XET="1", HF_HUB_OFFLINE="0")
    with subprocess.Popen([sys.executable, "-c", code], env=environment) as child:
        hub.faults = {request_: [child.kill]}
        assert child.wait(60) == -signal.SIGKILL
    with hub.lock:  # the hub finishes the request of the dead client, which it holds the lock for
        made = hub.repositories[NAME]
    assert len(made.commits) == (2 if request_ == COMMIT else 1)
    assert publish(tmp_path, {}).sha == made.sha
    assert len(made.commits) == 2 and made.files.items() >= FILES.items()
    assert sorted(hub.puts) == sorted({*hub.puts}), "no object was sent twice"


@pytest.mark.parametrize("token", [READER, "hf_nobody"])
def test_a_token_without_rights_writes_nothing(token: str, hub: Hub, tmp_path: Path) -> None:
    with refused("publish.refused", f"{NAME}.*HTTP status 40[13].*HF_TOKEN"):
        publish(tmp_path, FILES, token=token)
    hub.repositories[NAME] = Repository(private=True)
    with refused("publish.refused", "write access"):
        publish(tmp_path, FILES, token=token)
    assert len(hub.repositories[NAME].commits) == 1 and not hub.puts


def test_a_public_data_set_is_not_taken_for_a_private_one(hub: Hub, tmp_path: Path) -> None:
    hub.repositories[NAME] = Repository(private=False)
    with refused("publish.public", NAME):
        publish(tmp_path, FILES)
    assert not hub.puts
    assert publish(tmp_path, {}, private=False).sha == hub.repositories[NAME].sha


@pytest.mark.parametrize("theirs", [{"README.md": b"# Our data"}, {"data/evidence.parquet": b"card"}])
def test_files_of_somebody_else_are_left_alone(theirs: dict[str, bytes], hub: Hub, tmp_path: Path) -> None:
    made = hub.repositories[NAME] = Repository(private=True)
    made.commits.append({**made.files, **theirs})
    with refused("publish.foreign", f"{NAME}.*{next(iter(theirs))}"):
        publish(tmp_path, FILES)
    assert len(made.commits) == 2 and not hub.puts
    made.commits.append({**made.files, "README.md": b"an older card"})
    publish(tmp_path, {})
    assert made.files.items() >= FILES.items()


@pytest.mark.parametrize(
    ("request_", "status"), [("POST /api/validate-yaml", 400), ("POST /api/datasets", 413), (COMMIT, 422)]
)
def test_what_the_hub_does_not_accept_is_not_tried_again(request_: str, status: int, hub: Hub, tmp_path: Path) -> None:
    hub.faults = {request_: [status]}
    with refused("publish.unaccepted", rf"HTTP status {status}: as the test asked, not \*\*\*") as found:
        publish(tmp_path, FILES)
    assert not isinstance(found.value, TransientError) and len(hub.repositories[NAME].commits) == 1


def test_only_the_hub_itself_refuses_a_token(hub: Hub, tmp_path: Path) -> None:
    hub.faults = {"PUT": [403] * 9}
    with refused("hub.unavailable", "403"):
        publish(tmp_path, FILES)
    hub.faults = {COMMIT: [403]}
    with refused("publish.refused", "HTTP status 403: as the test asked"):
        publish(tmp_path, FILES)


def test_somebody_who_commits_again_and_again_is_named(hub: Hub, tmp_path: Path) -> None:
    hub.faults = {COMMIT: [412] * 5}
    with refused("publish.moved", NAME):
        publish(tmp_path, FILES)


def test_a_hub_that_does_not_answer_ends_the_upload(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answered = threading.Event()
    monkeypatch.setattr(hub_client, "_SECONDS_FOR_AN_ANSWER", 0.2)
    close_session()  # the present client keeps its time-out
    hub.faults = {COMMIT: [lambda: answered.wait(20)]}
    try:
        with refused("hub.unavailable", f"{NAME}.*timed out") as found:
            publish(tmp_path, FILES)
    finally:
        answered.set()
        close_session()
    assert isinstance(found.value, TransientError)


@pytest.mark.parametrize("value", [None, " "])
def test_there_is_no_token(value: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HF_TOKEN", raising=False)
    if value is not None:
        monkeypatch.setenv("HF_TOKEN", value)
    with refused("publish.no_token"):
        hub_token()
