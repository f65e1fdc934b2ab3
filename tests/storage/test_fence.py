"""Two owners of a store, the first of which stops at any point of a commit: what it does later leaves no trace."""

import errno
import shutil
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import boto3
import fsspec.asyn
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from s3fs.core import S3File

from gateau_dagster.storage import Stamp, Store, fence, lease, objects
from gateau_dagster.storage import files as files_module
from gateau_dagster.storage.documents import finish_publishing, publish_folder
from gateau_dagster.storage.fence import (
    COMMITS,
    Fence,
    LeaseLostError,
    Token,
    acting_as,
    adopt,
    exported,
    holding,
    numbers_in,
)
from gateau_dagster.storage.files import Files, prove_leases
from gateau_dagster.storage.lease import FOLDER, Lease
from gateau_dagster.storage.local import fill_with
from gateau_dagster.storage.process_identity import ProcessIdentity
from tests.kit.error_codes import refused
from tests.kit.project import ROOT, command_environment

NAMES = ("a/1", "a/2", "b")
LARGE = bytes(3000)


class Turns:
    """Lets one of two threads work at a time, from one point of its commits to the next, in a given order."""

    def __init__(self, order: list[str]) -> None:
        self._order, self._free = order, threading.Condition()
        self._working = {"old", "new"}
        self._at_work = ""
        self._names = threading.local()

    def run(self, works: dict[str, Callable[[], None]]) -> None:
        """Both works, to their ends."""
        failures: list[BaseException] = []

        def work(name: str) -> None:
            self._names.name = name
            try:
                self.point()
                works[name]()
            except BaseException as error:
                failures.append(error)
            with self._free:
                self._working.discard(name)
                self._at_work = ""
                self._free.notify_all()

        threads = [threading.Thread(target=work, args=(name,)) for name in works]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert not failures, failures

    def point(self, *_: object) -> None:
        """Waits for its turn. Where the order has ended, the new one works to its end first."""
        name = getattr(self._names, "name", None)
        if name is None:
            return
        with self._free:
            if self._at_work == name:
                self._at_work = ""
                self._free.notify_all()
            assert self._free.wait_for(lambda: not self._at_work and self._has_turn(name), 30)
            self._at_work = name
            if self._order:
                self._order.pop(0)

    def _has_turn(self, name: str) -> bool:
        while self._order and self._order[0] not in self._working:
            self._order.pop(0)
        return self._order[0] == name if self._order else name == "new" or "new" not in self._working


@contextmanager
def stopping(turns: Turns, files: Files) -> Iterator[None]:
    """Each of these calls is preceded by a point at which its thread may be stopped; a removal is one step with its
    proof."""
    calls: list[tuple[Any, str]] = [(Fence, "prove"), (Files, "create"), (Files, "sweep"), (Files, "remove")]
    if files.is_local:
        calls += [(Path, "replace"), (Path, "rename")]
    else:
        calls += [(fsspec.asyn, "sync"), (objects, "sync"), (S3File, "commit")]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lease, "EXPIRES_SECONDS", -1.0)
        patch.setattr(lease, "WATCH_SECONDS", 0.0)
        patch.setattr(lease, "RENEW_SECONDS", 1000.0)
        patch.setattr(files_module, "_CHUNK_BYTES", 1000)
        patch.setattr(ProcessIdentity, "state", lambda self: "unknown")
        for owner, name in calls:
            patch.setattr(owner, name, _preceded(turns, getattr(owner, name)))
        yield


SYNC, _COMMITTING = fsspec.asyn.sync, {"_pipe_file", "_copy_basic"}


def _preceded(turns: Turns, call: Callable[..., Any]) -> Callable[..., Any]:
    def preceded(*arguments: Any, **options: Any) -> Any:
        if call is not SYNC or arguments[1].__name__ in _COMMITTING:  # a request of s3fs
            turns.point()
        return call(*arguments, **options)

    return preceded


def content(store: Store) -> dict[str, bytes]:
    """All files but leases."""
    found = store.files.sizes()
    return {name: store.files.read(name) for name in found if not name.startswith(FOLDER)}


def leased(files: Files, party: str) -> Lease:
    return Lease(files, party=party, exclusive=True, configuration=f"/{party}.yaml", say=lambda text: None)


def change(store: Store, what: str, name: str, by: bytes) -> None:
    if what == "remove":
        store.files.remove(name)
    elif what == "large":
        store.files.write(name, by * 1500)
    else:
        store.files.write(name, by)


Change = tuple[str, str]
CHANGES = st.lists(
    st.tuples(st.sampled_from(["write", "large", "remove"]), st.sampled_from(NAMES)), min_size=1, max_size=3
)


def take_over(store: Store, order: list[str], old_does: list[Change], new_does: list[Change]) -> None:
    """The old one works while the new one takes over: what is there in the end is what the new one found when it had
    the lease, and its own changes."""
    for name in ("a/1", "b"):
        store.files.write(name, b"0")
    turns, found, lost = Turns([*order]), dict[str, bytes](), list[bool]()
    old = leased(Store(store.root).files, "old")
    with stopping(turns, store.files):
        old.__enter__()

        def first() -> None:
            with acting_as(old.token):
                try:
                    for what, name in old_does:
                        change(Store(store.root), what, name, b"1")
                except LeaseLostError:
                    lost.append(True)

        def second() -> None:
            with leased(Store(store.root).files, "new") as new, acting_as(new.token):
                found.update(content(store))
                for what, name in new_does:
                    change(Store(store.root), what, name, b"2")

        turns.run({"old": first, "new": second})
        old._ending.set()
    model = {name: data for name, data in found.items() if name in NAMES}
    for what, name in new_does:
        if what == "remove":
            model.pop(name, None)
        else:
            model[name] = b"2" * (1500 if what == "large" else 1)
    assert content(store) == model, "and no temporary is left"
    if not store.files.is_local:
        bucket, _, prefix = store.root.removeprefix("s3://").partition("/")
        assert "Uploads" not in boto3.client("s3").list_multipart_uploads(Bucket=bucket, Prefix=prefix)


def stopped(what: str, *, turns: int) -> Any:
    """The old one stops after so many points of its change; the new one takes over and works."""
    return example(order=["old"] * turns, old=[(what, "a/1")], new=[("large", "a/1"), ("write", "b")])


ORDERS = st.lists(st.sampled_from(["old", "new"]), max_size=40)
TOLERANT = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]


@settings(max_examples=150, suppress_health_check=TOLERANT)
@given(order=ORDERS, old=CHANGES, new=CHANGES)
def test_who_lost_a_store_on_a_disk_changes_nothing_later(
    tmp_path_factory: pytest.TempPathFactory, order: list[str], old: list[Change], new: list[Change]
) -> None:
    take_over(Store(str(tmp_path_factory.mktemp("fence") / "store")), order, old, new)


@pytest.mark.long
@settings(max_examples=2, suppress_health_check=TOLERANT)
@stopped("large", turns=1)
@stopped("large", turns=2)
@stopped("large", turns=3)
@stopped("write", turns=2)
@stopped("write", turns=3)
@stopped("remove", turns=1)
@given(order=ORDERS, old=CHANGES, new=CHANGES)
def test_who_lost_a_store_on_s3_changes_nothing_later(
    bucket: str, order: list[str], old: list[Change], new: list[Change]
) -> None:
    take_over(Store(f"s3://{bucket}/{uuid.uuid4()}"), order, old, new)


@pytest.fixture
def not_renewed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The lease's own thread notices nothing; work outside the store looks each time."""
    monkeypatch.setattr(lease, "RENEW_SECONDS", 1000.0)
    monkeypatch.setattr(fence, "_SECONDS_BETWEEN_LOOKS", 0.0)


def owned(store: Store) -> Lease:
    held = leased(store.files, "one")
    held.__enter__()
    return held


@pytest.mark.usefixtures("not_renewed")
def test_a_lease_that_nobody_took_is_good_however_late_it_is_renewed(store: Store) -> None:
    held = owned(store)
    with holding(held.token, alone=True):
        store.files.write("a", b"1")
        store.files.write(held.token.name, b"{")  # damaged: it is written again by who has it
        store.files.write("a", b"2")
    held.release()
    assert content(store) == {"a": b"2"}


@pytest.mark.usefixtures("not_renewed")
def test_another_s_lease_of_the_same_number_is_no_proof(store: Store, tmp_path: Path) -> None:
    """The folder of leases was removed, and somebody else counted from 1 again."""
    held, theirs, file = owned(store), b'{"lease": "theirs"}', tmp_path / "made"
    file.write_bytes(b"1")
    store.files.write("a", b"0")
    store.files.write(held.token.name, theirs)
    changes: list[Callable[[], None]] = [
        lambda: store.files.write("a", b"1"),
        lambda: store.files.write_by("a", partial(fill_with, data=b"1")),
        lambda: store.files.rename("a", "b"),
        lambda: store.files.remove("a"),
        prove_leases,
    ]
    if not store.files.is_local:
        changes.append(lambda: store.files.upload("a", file))
    with holding(held.token, alone=True):
        for change_it in changes:
            with pytest.raises(LeaseLostError):
                change_it()
    held.release()
    assert content(store) == {"a": b"0"} and store.files.read(held.token.name) == theirs


def test_a_proof_is_of_every_lease_of_its_own_store(store: Store) -> None:
    """A refresh and a step within it may each have one; a temporary of both is removed with either."""
    first, second = (Token(root=store.root, number=number, lease=f"id{number}") for number in (1, 2))
    with holding(replace(first, root="elsewhere"), alone=True):
        store.files.write("a", b"1")
        with holding(first, alone=False), holding(second, alone=False):
            assert numbers_in(f".a.{store.files.fence.mark}.0123.tmp") == [1, 2]
            store.files.create(first.name, b'{"lease": "id1"}')
            with pytest.raises(LeaseLostError):
                store.files.write("a", b"2")
            store.files.create(second.name, b'{"lease": "id2"}')
            store.files.write("a", b"2")
        with holding(first, alone=True), holding(second, alone=True):
            assert store.files.fence.tokens == [second]
    assert content(store) == {"a": b"2"}


def test_a_lease_that_cannot_be_read_just_now(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    token, answers = Token(root=store.root, number=1, lease="ours"), [OSError(errno.ESTALE, "stale")] * 2

    def read(name: str) -> bytes:
        if answers:
            raise answers.pop()
        return b'{"lease": "ours"}'

    with holding(token, alone=True):
        Fence(store.root, read).prove()
        answers += [OSError(errno.EIO, "no disk")]
        with pytest.raises(OSError, match="no disk"):
            Fence(store.root, read).prove()
        answers += [OSError(errno.EIO, "no disk")]
        monkeypatch.setattr(Files, "_read_lease", lambda self, name: read(name))
        monkeypatch.setattr(fence, "_SECONDS_BETWEEN_LOOKS", 0.0)
        prove_leases()
        assert not answers, "work outside the store goes on"


@pytest.mark.usefixtures("not_renewed")
def test_a_removal_takes_what_it_listed_and_not_another_s_file(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    held, prove = owned(store), Fence.prove
    store.files.write("a/1", b"1")

    def proved(self: Fence) -> None:
        prove(self)
        monkeypatch.setattr(Fence, "prove", prove)
        with acting_as():
            store.files.remove(held.token.name)
            store.files.write("a/2", b"2")

    monkeypatch.setattr(Fence, "prove", proved)
    with holding(held.token, alone=True), pytest.raises(LeaseLostError):
        store.files.remove("a")
    assert content(store) == {"a/2": b"2"}
    held.release()


@pytest.mark.usefixtures("not_renewed")
def test_what_a_living_lease_is_about_to_commit_is_not_swept(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    alive, dead = (Lease(store.files, party="one", exclusive=False, configuration="x", say=print) for _ in range(2))
    with alive:
        dead.__enter__()
        for number in (1, 2):
            store.files.write(
                f"{COMMITS}/lease-{number}/x" if not store.files.is_local else f".x.lease-{number}.0.tmp", b"x"
            )
        lease._of_this_process.discard(dead._holder.lease)
        with Lease(store.files, party="one", exclusive=False, configuration="x", say=print):
            [left] = content(store)
        assert "lease-1" in left
    dead.release()


@pytest.mark.usefixtures("not_renewed")
def test_processes_that_the_owner_starts_prove_its_lease(tmp_path: Path) -> None:
    """Test that they receive it by their environment, or as an argument."""
    store = Store(str(tmp_path))
    held = owned(store)
    script = (
        "import sys; from gateau_dagster.storage.files import Files\n"
        "try: Files(sys.argv[1]).write('a', b'1')\nexcept ValueError as error: print(type(error).__name__)"
    )
    command = [sys.executable, "-c", script, str(tmp_path)]

    def said() -> str:
        return subprocess.run(
            command, cwd=ROOT, env=command_environment(), capture_output=True, text=True, check=True
        ).stdout

    with holding(held.token, alone=True):
        told = exported()
        assert said() == "" and content(store) == {"a": b"1"}
        store.files.remove(held.token.name)
        assert said() == "LeaseLostError\n"
    assert said() == "", "it has none any more"
    with holding(held.token, alone=True):
        adopt(told)
        with pytest.raises(LeaseLostError, match="has taken over"):
            store.files.write("a", b"2")
        with pytest.raises(LeaseLostError):
            prove_leases()
    assert content(store) == {"a": b"1"}
    held.release()


def test_a_refresh_ends_the_steps_of_its_party_that_have_run_out(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("EXPIRES_SECONDS", -1.0), ("WATCH_SECONDS", 0.0), ("RENEW_SECONDS", 1000.0)):
        monkeypatch.setattr(lease, name, value)
    monkeypatch.setattr(ProcessIdentity, "state", lambda self: "unknown")
    step = Lease(store.files, party="one", exclusive=False, configuration="x", say=print)
    with pytest.raises(LeaseLostError), step, acting_as(step.token):
        store.files.write("a", b"1")
        with Lease(store.files, party="one", exclusive=False, configuration="x", say=print):
            store.files.write("a", b"2")  # another step ends nothing
        with leased(store.files, "one"), pytest.raises(LeaseLostError):
            store.files.write("a", b"3")
    assert content(store) == {"a": b"2"}


@pytest.mark.usefixtures("not_renewed")
@pytest.mark.parametrize("killed", [False, True])
def test_a_folder_that_the_old_owner_was_publishing_is_completed_or_discarded(tmp_path: Path, killed: bool) -> None:
    """Never mixed with that of the new one."""
    store, made = Store(str(tmp_path / "store")), tmp_path / "made"
    made.mkdir()
    (made / "weights").write_text("old")
    old = owned(store)

    def stopped(self: Fence) -> None:
        raise KeyboardInterrupt

    with acting_as(old.token), pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Fence, "prove", stopped)
        publish_folder(store, made, "model", Stamp(fingerprint="old"))
    [staged] = (tmp_path / "store").glob(".model*")
    store.files.remove(old.token.name)
    half = tmp_path / "store" / ".model.new"  # of an owner before that, who was killed while he published
    half.mkdir()
    (half / "half").touch()
    store.files.sweep(lambda number: number == 1)
    assert not staged.exists(), "the old one's rename fails"
    finish_publishing(store, "model")
    assert (tmp_path / "store" / "model" / "weights").read_text() == "old", "it was whole"
    assert not (tmp_path / "store" / "model" / "half").exists()
    if not killed:
        with acting_as(old.token), refused("storage.lease_lost"):
            finish_publishing(store, "model")


@pytest.mark.usefixtures("not_renewed")
@pytest.mark.parametrize("completed", [False, True])
def test_a_folder_is_not_put_in_its_place_after_a_take_over(
    tmp_path: Path, completed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The old owner stops with its folder staged; the new one has taken the lease, or completed the folder, too."""
    store, proofs, prove = Store(str(tmp_path / "store")), list[Fence](), Fence.prove
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "weights").write_text(name)
    publish_folder(store, tmp_path / "one", "model", Stamp(fingerprint="one"))
    old = owned(store)

    def proved(self: Fence) -> None:
        proofs.append(self)
        if len(proofs) == 2 and not completed:
            Path(store.files.address(old.token.name)).unlink()
        prove(self)
        if len(proofs) == 2:
            Path(store.files.address(old.token.name)).unlink()
            shutil.rmtree(tmp_path / "store" / ".model.new")

    monkeypatch.setattr(Fence, "prove", proved)
    with acting_as(old.token), pytest.raises(LeaseLostError):
        publish_folder(store, tmp_path / "two", "model", Stamp(fingerprint="two"))
    assert (tmp_path / "store" / "model" / "weights").read_text() == "one"
    old.release()
