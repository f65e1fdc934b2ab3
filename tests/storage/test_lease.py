"""A store has one owner at a time, on a disk and on S3."""

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from unittest import mock

import pytest

from gateau_dagster.errors import GateauError, TransientError
from gateau_dagster.storage import Store, lease
from gateau_dagster.storage.files import Files
from gateau_dagster.storage.lease import FOLDER, Holder, Lease
from gateau_dagster.storage.process_identity import ProcessIdentity
from tests.kit.error_codes import refused

# A process on a machine that cannot be seen from here.
ELSEWHERE = replace(ProcessIdentity.of(), host="elsewhere", boot_id="another", machine="").to_text()
# One of this machine that has ended: no process has so high an id.
GONE = replace(ProcessIdentity.of(), pid=2**22 + 1).to_text()


@pytest.fixture
def files(store: Store) -> Files:
    return store.files


@pytest.fixture(autouse=True)
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease, "RENEW_SECONDS", 0.05)
    monkeypatch.setattr(lease, "WATCH_SECONDS", 0.5)


def leased(
    files: Files, party: str = "one", *, exclusive: bool = True, say: Callable[[str], None] = lambda text: None
) -> Lease:
    return Lease(files, party=party, exclusive=exclusive, configuration=f"/{party}.yaml", say=say)


def left_behind(files: Files, **changed: Any) -> None:
    """The next lease, of a holder who is no more, or not here."""
    now = time.time()
    holder = Holder(
        party="one", exclusive=True, process=GONE, configuration="/one.yaml", since=now - 100, renewed_at=now
    )
    number = len(files.names(FOLDER)) + 1
    assert files.create(f"{FOLDER}/{number:08d}.json", replace(holder, **changed).to_bytes())


def latest(files: Files) -> Holder:
    found = Holder.from_bytes(files.read(f"{FOLDER}/{files.names(FOLDER)[-1]}"))
    assert found is not None
    return found


def test_the_second_one_is_told_who_has_it_and_since_when(files: Files) -> None:
    with leased(files):
        process = ProcessIdentity.of()
        told = rf"in use by process {process.pid} on {process.host}, with /one\.yaml, since 20\d\d-.* UTC\. Only"
        for party in ("one", "two"):
            with refused("storage.lease_held", told), leased(files, party):
                pass
    assert latest(files).released
    with leased(files, "two"):
        assert latest(files).party == "two"


def test_steps_of_one_party_go_together_and_with_its_refresh(files: Files) -> None:
    with (
        leased(files, exclusive=False),
        leased(files, exclusive=False),
        leased(files, exclusive=True),
        refused("storage.lease_held", r"/one\.yaml"),
        leased(files, "two", exclusive=False),
    ):
        pass
    with leased(files, "two", exclusive=False):
        pass


def test_it_is_renewed_while_it_is_held(files: Files) -> None:
    with leased(files):
        deadline = time.monotonic() + 20
        while latest(files).renewals < 3:
            assert time.monotonic() < deadline
            time.sleep(0.02)


@pytest.mark.parametrize("exclusive", [True, False])
def test_of_many_at_once_one_has_it(files: Files, exclusive: bool) -> None:
    """Each of a party of its own, so that only one can."""
    together, start, refused = [], threading.Barrier(6), []
    inside = threading.Semaphore(1)

    def work(number: int) -> None:
        start.wait()
        try:
            with leased(files, f"party{number}", exclusive=exclusive):
                assert inside.acquire(blocking=False), "two at once"
                together.append(number)
                time.sleep(0.3)
                inside.release()
        except GateauError as error:
            refused.append(str(error))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(together) >= 1 and len(together) + len(refused) == 6


def test_a_number_that_others_used_meanwhile_is_given_back(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between looking and creating two others had the store, and what the first one left was cleared away."""
    left_behind(files)
    real, other = files.create, leased(Store(files.root).files, "three")
    begun: list[int] = []

    def slowly(name: str, data: bytes) -> bool:
        if not begun:
            begun.append(1)
            with leased(Store(files.root).files, "two"):
                pass
            other.__enter__()
            assert files.names(FOLDER) == ["00000003.json"]
        return real(name, data)

    monkeypatch.setattr(files, "create", slowly)
    try:
        with refused("storage.lease_held", r"/three\.yaml"), leased(files, "one"):
            pass
        assert files.names(FOLDER) == ["00000003.json"]
    finally:
        other.release()


@pytest.mark.parametrize(
    "error", [FileNotFoundError("another was faster"), TransientError("storage.connection", "no answer")]
)
def test_old_leases_that_cannot_be_cleared_away_are_no_hindrance(
    files: Files, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    left_behind(files)
    with monkeypatch.context() as patch:
        patch.setattr(files, "remove", mock.Mock(side_effect=error))
        with leased(files, "two"):
            assert latest(files).party == "two"
    with leased(files, "one"):
        assert files.names(FOLDER) == ["00000003.json"]


def test_a_process_that_is_surely_gone_holds_nothing(files: Files) -> None:
    left_behind(files)
    with leased(files, "two"):
        assert latest(files).party == "two"
    assert len(files.names(FOLDER)) == 1, "what has ended is cleared away"
    assert files.names(FOLDER) == ["00000002.json"], "and its number is not used again"


def test_elsewhere_it_lives_while_it_gives_signs_of_life(files: Files) -> None:
    left_behind(files, process=ELSEWHERE, renewed_at=time.time() - 20)
    with (
        refused("storage.lease_held", "60"),
        leased(files),
    ):
        pass


@pytest.mark.parametrize("ago", [3600.0, -3600.0])
def test_one_that_ran_out_is_watched_before_it_is_taken(files: Files, ago: float) -> None:
    """Test it for the clock of another machine, which may be an hour off."""
    left_behind(files, process=ELSEWHERE, renewed_at=time.time() - ago)
    said: list[str] = []
    with leased(files, "two", say=said.append):
        assert latest(files).party == "two"
    assert len(said) == 1 and "on elsewhere" in said[0] and "watching it" in said[0]


def test_one_that_is_renewed_while_it_is_watched_lives(files: Files) -> None:
    left_behind(files, process=ELSEWHERE, renewed_at=time.time() - 3600)

    def renew(text: str) -> None:
        files.write(f"{FOLDER}/00000001.json", replace(latest(files), renewals=1).to_bytes())

    with refused("storage.lease_held"), leased(files, "two", say=renew):
        pass


def test_a_damaged_lease_is_watched_too(files: Files) -> None:
    left_behind(files, process=ELSEWHERE)
    good = files.read(f"{FOLDER}/00000001.json")
    files.write(f"{FOLDER}/00000001.json", good.replace(b"elsewhere", b"elsewhers"))
    with (
        refused("storage.lease_held"),
        leased(files, "two", say=lambda text: files.write(f"{FOLDER}/00000001.json", good)),
    ):
        pass
    files.write(f"{FOLDER}/00000001.json", b"{")
    with leased(files, "two"):
        assert latest(files).party == "two"


def damaged(**changed: Any) -> bytes:
    """A lease with fields of wrong types, whose digest is right."""
    holder = Holder(party="a", exclusive=True, process=GONE, configuration="c", since=1.0, renewed_at=1.0)
    return replace(holder, **changed).to_bytes()


@pytest.mark.parametrize(
    "data",
    [
        *(b"", b"\xff", b"null", b"[]", b"1" * 5000, b"[" * 100_000, b'{"check":' * 100_000),
        *(damaged(party=1), damaged(exclusive="yes"), damaged(configuration=None), damaged(lease=[])),
        *(damaged(since="now"), damaged(since=1e300), damaged(renewed_at=10**400), damaged(renewed_at=-1)),
        *(damaged(since=True), damaged(renewals=1.5), damaged(released=1), damaged(party={"a": []})),
        *(damaged(process=""), damaged(process=7), damaged(process="h|x|1|||"), damaged(process="h|1|x|||")),
        *(damaged(process="h|-1|1|||"), damaged(process=f"h|{2**70}|1|||"), damaged(process=f"h|{'9' * 5000}|1|||")),
    ],
    ids=lambda data: f"{data[:12]}{len(data)}",
)
def test_what_is_no_lease_is_damaged(data: bytes) -> None:
    assert Holder.from_bytes(data) is None


@pytest.mark.parametrize("kind", ["nested", "huge", "folder"])
def test_what_is_no_lease_is_watched_and_cleared_away(files: Files, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    monkeypatch.setattr(lease, "_MOST_BYTES", 150_000)
    name = f"{FOLDER}/00000001.json{'/inside' if kind == 'folder' else ''}"
    files.write(name, b"[" * (100_000 if kind == "nested" else 200_000))
    files.write(f"{FOLDER}/\N{SUPERSCRIPT TWO}.json", b"no number")
    said: list[str] = []
    with leased(files, "two", say=said.append):
        assert "00000002.json" in files.names(FOLDER)
    assert "00000001.json" not in files.names(FOLDER)
    assert len(said) == 1 and said[0].startswith("A lease is damaged; watching it")


def test_who_lost_it_stops(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    """Taken for dead while the machine slept: on waking up, the process must not go on writing."""
    interrupted = threading.Event()
    monkeypatch.setattr(lease.os, "kill", lambda pid, number: interrupted.set())
    held = leased(files)
    with refused("storage.lease_lost", r"/two\.yaml"), held:
        left_behind(files, party="two", configuration="/two.yaml")
        assert interrupted.wait(20)


@pytest.mark.parametrize(
    "failure", [GateauError("storage.disk_full", "the disk is full"), RuntimeError("the disk is full")], ids=repr
)
def test_a_store_out_of_reach_for_a_while_is_no_loss(
    files: Files, monkeypatch: pytest.MonkeyPatch, failure: Exception
) -> None:
    real, failed, renewed = files.write, threading.Event(), threading.Event()

    def fails(name: str, data: bytes) -> None:
        if not failed.is_set():
            failed.set()
            raise failure
        real(name, data)
        renewed.set()

    monkeypatch.setattr(files, "write", fails)
    said: list[str] = []
    expected = isinstance(failure, RuntimeError)
    with leased(files, say=said.append):
        assert failed.wait(20) and renewed.wait(20)
    assert ["not renewed (RuntimeError: the disk is full)" in each for each in said] == [True] * expected
    assert latest(files).released


def test_one_that_cannot_be_given_back_hides_no_failure_and_is_no_hindrance(
    files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    said, silent = list[str](), GateauError("storage.server_failed", "the server does not answer")
    with pytest.raises(KeyError, match="the work's own"), leased(files, say=said.append):
        monkeypatch.setattr(files, "write", mock.Mock(side_effect=silent))
        raise KeyError("the work's own")
    assert len(said) == 1 and "could not be released" in said[0]
    with leased(files, "two"):
        assert latest(files).party == "two"
