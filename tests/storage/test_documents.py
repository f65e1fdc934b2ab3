import contextlib
import hashlib
import os
import random
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from gateau_dagster.errors import GateauError, TransientError
from gateau_dagster.storage import Stamp, Store, documents
from gateau_dagster.storage.content import RECORDS, file_digests, folder_content, model_content
from gateau_dagster.storage.documents import (
    beside,
    changed_records,
    content_version,
    document_stamp,
    fetched_folder,
    finish_publishing,
    folder_stamp,
    publish_folder,
    read_document,
    write_document,
)
from gateau_dagster.storage.files import Files
from tests.kit.error_codes import refused
from tests.kit.project import ROOT
from tests.storage.builders import flipped

STAMP = Stamp(fingerprint="f", content="c")


def made(tmp_path: Path, name: str, **files: str) -> Path:
    folder = tmp_path / name
    (folder / "sub").mkdir(parents=True)
    for file, text in files.items():
        (folder / file.replace("__", "/")).write_text(text)
    return folder


def test_a_document_comes_with_its_stamp(store: Store) -> None:
    assert document_stamp(store, "report.html") is None
    write_document(store, "report.html", "<p>ü</p>", STAMP)
    assert read_document(store, "report.html") == "<p>ü</p>"
    content = hashlib.sha256("<p>ü</p>".encode()).hexdigest()
    assert document_stamp(store, "report.html") == Stamp(fingerprint="f", content=content)
    store.files.remove("report.html")
    assert document_stamp(store, "report.html") is None


def test_a_damaged_document_counts_as_missing_and_is_not_read(store: Store) -> None:
    write_document(store, "c.json", '{"spearman": 0.25}', STAMP)
    good = store.files.read("c.json.stamp.json")
    for damage in (b"", b"{", b"[]", b'{"fingerprint": "f", "unknown": 1}'):
        store.files.write("c.json.stamp.json", damage)
        assert document_stamp(store, "c.json") is None
    store.files.write("c.json.stamp.json", good)
    store.files.write("c.json", b'{"spearman": 0.35}')
    assert document_stamp(store, "c.json") is None
    with refused("storage.damaged", match=r"c\.json"):
        read_document(store, "c.json")
    store.files.write("c.json.stamp.json", b'{"fingerprint": "f"}')  # of old: it does not say what the document holds
    assert read_document(store, "c.json") == '{"spearman": 0.35}'
    with refused("storage.not_computed", r"d\.json"):
        read_document(store, "d.json")


def test_files_that_a_document_loads_are_read_once_while_they_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, cache, file = Store(str(tmp_path / "store")), tmp_path / "cache.json", tmp_path / "store/data/a.js"
    store.files.write("data/a.js", b"first")
    write_document(store, "page.html", "x", replace(STAMP, files=beside(store.files, "data")))
    read: list[bytes] = []
    monkeypatch.setattr("gateau_dagster.storage.store._SETTLED_NS", 0)
    monkeypatch.setattr(documents, "content_version", lambda data: (read.append(data), content_version(data))[1])
    for _ in range(2):
        assert document_stamp(store, "page.html", cache) is not None
    assert read == [b"first"]
    status = file.stat()
    file.write_bytes(b"First")
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert document_stamp(store, "page.html", cache) is None, "of the same size and time, but for that of the change"
    file.unlink()
    assert document_stamp(store, "page.html", cache) is None


def stamped(folder: Path) -> Stamp:
    files = file_digests(folder)
    return Stamp(fingerprint="f", content=model_content(files), files=files)


def test_a_damaged_model_is_named_by_its_file_and_made_again(store: Store, tmp_path: Path) -> None:
    folder, scratch = made(tmp_path, "one", model="weights", config="{}"), tmp_path / "scratch"
    publish_folder(store, folder, "checkpoint", stamped(folder))
    assert (fetched_folder(store, "checkpoint", scratch) / "model").read_text() == "weights"
    store.files.write("checkpoint/model", b"Weights")
    (scratch / "checkpoint.version").unlink(missing_ok=True)
    with refused("storage.damaged", match="damaged: model"):
        fetched_folder(store, "checkpoint", scratch)
    assert folder_stamp(store, "checkpoint") is None
    store.files.rename("checkpoint/gateau.json.damaged", "checkpoint/gateau.json")
    store.files.write("checkpoint/model", b"weights")
    found = fetched_folder(store, "checkpoint", scratch)
    assert (found / "model").read_text() == "weights", "a user put the file back"
    store.files.remove("checkpoint/config")
    (scratch / "checkpoint.version").unlink(missing_ok=True)
    with refused("storage.damaged", match="damaged: config"):
        fetched_folder(store, "checkpoint", scratch)


def test_a_changed_readme_or_log_is_named_and_costs_no_training(store: Store, tmp_path: Path) -> None:
    folder, scratch = made(tmp_path, "one", model="weights"), tmp_path / "scratch"
    for name in RECORDS:
        (folder / name).write_text(f"of {name}")
    stamp = stamped(folder)
    files = {name: digest for name, digest in stamp.files.items() if name not in RECORDS}
    assert stamp.content == folder_content(files), "the content of a model by an earlier release"
    publish_folder(store, folder, "checkpoint", stamp)
    assert changed_records(store, "checkpoint") == []
    rng = random.Random(0)
    for name in RECORDS:
        good = store.files.read(f"checkpoint/{name}")
        for bad in [flipped(good, rng.randrange(8 * len(good))), b"", good[:-1]]:
            store.files.write(f"checkpoint/{name}", bad)
            assert changed_records(store, "checkpoint") == [name]
            assert (fetched_folder(store, "checkpoint", scratch) / "model").read_text() == "weights"
        store.files.remove(f"checkpoint/{name}")
        assert changed_records(store, "checkpoint") == []
    store.files.write("checkpoint/README.md", b"edited")
    store.files.write("checkpoint/gateau.json", replace(stamp, files=files).to_json().encode())
    assert changed_records(store, "checkpoint") == [], "a stamp of an earlier release does not name it"
    assert fetched_folder(store, "checkpoint", scratch)


def test_a_damaged_copy_is_fetched_again_and_the_store_is_not_blamed(bucket: str, tmp_path: Path) -> None:
    store, folder = Store(f"s3://{bucket}/store"), made(tmp_path, "one", model="weights")
    publish_folder(store, folder, "checkpoint", stamped(folder))
    copy = fetched_folder(store, "checkpoint", tmp_path / "scratch")
    (copy / "model").write_text("Weights")
    assert (fetched_folder(store, "checkpoint", tmp_path / "scratch") / "model").read_text() == "weights"
    assert folder_stamp(store, "checkpoint") is not None
    (tmp_path / "scratch" / "checkpoint.version").write_bytes(b"\xff")
    assert (fetched_folder(store, "checkpoint", tmp_path / "scratch") / "model").read_text() == "weights"


def test_a_folder_is_read_once_while_it_stays(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = made(tmp_path, "one", model="weights")
    publish_folder(store, folder, "checkpoint", stamped(folder))
    fetched_folder(store, "checkpoint", tmp_path / "scratch")
    monkeypatch.setattr(documents, "file_digests", lambda folder: pytest.fail("it is read again"))
    fetched_folder(store, "checkpoint", tmp_path / "scratch")


def test_a_folder_replaces_the_one_before_completely(store: Store, tmp_path: Path) -> None:
    assert folder_stamp(store, "checkpoint") is None
    publish_folder(store, made(tmp_path, "one", a="1", sub__b="2", old="x"), "checkpoint", STAMP)
    assert folder_stamp(store, "checkpoint") == STAMP
    assert store.files.read("checkpoint/sub/b") == b"2"
    newer = Stamp(fingerprint="g")
    publish_folder(store, made(tmp_path, "two", a="new"), "checkpoint", newer)
    assert folder_stamp(store, "checkpoint") == newer
    assert store.files.read("checkpoint/a") == b"new"
    assert not store.files.exists("checkpoint/old") and not store.files.exists("checkpoint/sub/b")
    leftovers = [name for name in store.files.names("") if name != "checkpoint"]
    assert leftovers == []


def test_an_interrupted_publication_to_s3_counts_as_missing(
    bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(f"s3://{bucket}")
    publish_folder(store, made(tmp_path, "one", a="1", b="2"), "checkpoint", STAMP)
    real = store.files.upload

    def breaking(name: str, file: Path) -> None:
        if name.endswith("/b"):
            raise GateauError("data.missing", "lost")
        real(name, file)

    monkeypatch.setattr(store.files, "upload", breaking)
    with refused("data.missing"):
        publish_folder(store, made(tmp_path, "two", a="1", b="2"), "checkpoint", STAMP)
    assert folder_stamp(store, "checkpoint") is None


@pytest.fixture
def other_disk(tmp_path: Path) -> Iterator[Path]:
    """A folder on another file system than `tmp_path`, whichever of memory and disk that is on."""
    places = [Path("/dev/shm"), Path("/var/tmp"), ROOT]
    place = next(place for place in places if place.exists() and place.stat().st_dev != tmp_path.stat().st_dev)
    with tempfile.TemporaryDirectory(dir=place) as name:
        yield Path(name)


def test_a_folder_from_another_disk_is_copied_and_then_gone(tmp_path: Path, other_disk: Path) -> None:
    store = Store(str(tmp_path / "store"))
    folder = made(other_disk, "one", a="1", sub__b="2")
    assert folder.stat().st_dev != tmp_path.stat().st_dev
    publish_folder(store, folder, "checkpoint", STAMP)
    assert folder_stamp(store, "checkpoint") == STAMP
    assert store.files.read("checkpoint/sub/b") == b"2"
    assert list(other_disk.iterdir()) == []


def test_a_full_disk_while_publishing_is_named(
    tmp_path: Path, other_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(str(tmp_path / "store"))
    publish_folder(store, made(tmp_path, "one", a="1"), "checkpoint", STAMP)

    full = mock.Mock(side_effect=OSError(28, "No space left on device"))
    monkeypatch.setattr(documents.shutil, "copyfile", full)
    with refused("storage.disk_full"):
        publish_folder(store, made(other_disk, "two", a="2"), "checkpoint", STAMP)
    assert store.files.read("checkpoint/a") == b"1" and folder_stamp(store, "checkpoint") == STAMP


class KilledError(BaseException):
    """Ends the process, as far as the code under test can tell."""


@pytest.mark.parametrize("same_disk", [True, False])
@pytest.mark.parametrize("steps", range(8))
def test_a_kill_at_any_step_loses_neither_the_old_folder_nor_the_new_one(
    tmp_path: Path, other_disk: Path, monkeypatch: pytest.MonkeyPatch, steps: int, same_disk: bool
) -> None:
    """The process ends before the n-th change of a name or removal of a folder."""
    store, newer = Store(str(tmp_path / "store")), Stamp(fingerprint="new")
    publish_folder(store, made(tmp_path, "one", a="old"), "checkpoint", STAMP)
    folder = made(tmp_path if same_disk else other_disk, "two", a="new")
    left = steps

    def dying(real: Callable[..., Any]) -> Callable[..., Any]:
        def step(*arguments: Any, **options: Any) -> Any:
            nonlocal left
            if left == 0:
                raise KilledError
            left -= 1
            return real(*arguments, **options)

        return step

    with monkeypatch.context() as patch:
        for owner, name in ((Path, "rename"), (Path, "replace"), (documents.shutil, "rmtree")):
            patch.setattr(owner, name, dying(getattr(owner, name)))
        with contextlib.suppress(KilledError):
            publish_folder(store, folder, "checkpoint", newer)
    finish_publishing(store, "checkpoint")
    stamp = folder_stamp(store, "checkpoint")
    assert stamp in (STAMP, newer)
    assert store.files.read("checkpoint/a") == (b"new" if stamp == newer else b"old")
    assert stamp == newer or (folder / "a").exists(), "the new weights are in their old place or in the new one"
    if not folder.exists():
        folder = made(tmp_path, "three", a="new")
    publish_folder(store, folder, "checkpoint", newer)
    assert store.files.read("checkpoint/a") == b"new"
    assert [path.name for path in (tmp_path / "store").iterdir()] == ["checkpoint"]


def test_a_stamp_that_cannot_be_read_is_not_one_that_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model would be trained again for a server that does not answer."""
    store, silent = Store(str(tmp_path)), TransientError("storage.connection", "the server does not answer")
    monkeypatch.setattr(Files, "read", mock.Mock(side_effect=silent))
    for look in (folder_stamp, document_stamp):
        with pytest.raises(TransientError):
            look(store, "checkpoint")
