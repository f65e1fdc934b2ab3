"""Files on this machine: rights as the umask says, and creation that one of many wins."""

import errno
import os
import stat
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from gateau_dagster.storage import Stamp, Store, documents
from gateau_dagster.storage.documents import publish_folder
from gateau_dagster.storage.files import Files
from gateau_dagster.storage.local import fill_with, flush_folder, write_if_other
from tests.error_codes import refused


@pytest.fixture
def private() -> Iterator[None]:
    """Whoever runs the test keeps new files to themselves."""
    before = os.umask(0o077)
    yield
    os.umask(before)


def rights(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.usefixtures("private")
def test_new_files_and_folders_have_the_rights_that_the_umask_gives(tmp_path: Path) -> None:
    files = Files(str(tmp_path / "store"))
    files.write("f/a", b"1")
    files.write_by("f/b", partial(fill_with, data=b"1"))
    files.create("f/c", b"1")
    assert {rights(path) for path in (tmp_path / "store" / "f").iterdir()} == {0o600}
    assert rights(tmp_path / "store" / "f") == rights(tmp_path / "store") == 0o700
    os.umask(0o002)
    files.write("f/a", b"for the group")
    assert rights(tmp_path / "store" / "f" / "a") == 0o664


@pytest.mark.parametrize("other_disk", [False, True])
def test_what_is_published_has_the_rights_that_the_umask_gives(
    tmp_path: Path, private: None, other_disk: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """safetensors makes files that their user alone may read."""
    for umask, file, folder in ((0o077, 0o600, 0o700), (0o022, 0o644, 0o755)):
        os.umask(umask)
        (tmp_path / "made" / "sub").mkdir(parents=True)
        weights = tmp_path / "made" / "sub" / "weights"
        weights.write_text("1")
        weights.chmod(0o600)
        if other_disk:
            monkeypatch.setattr(documents, "moves_into", lambda new, parent: False)
        publish_folder(Store(str(tmp_path / f"store{umask}")), tmp_path / "made", "models/a", Stamp(fingerprint="f"))
        for path in (tmp_path / f"store{umask}").rglob("*"):
            assert rights(path) == (folder if path.is_dir() else file), path


def test_one_of_many_creates_the_file(tmp_path: Path) -> None:
    files = Files(str(tmp_path))
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(lambda number: files.create("f/a", str(number).encode()), range(32)))
    assert made.count(True) == 1
    assert files.read("f/a") == str(made.index(True)).encode()
    assert files.names("f") == ["a"]


def test_a_link_whose_answer_was_lost_is_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    link = os.link

    def asked_twice(source: Path, target: Path) -> None:
        link(source, target)
        link(source, target)

    monkeypatch.setattr(os, "link", asked_twice)
    assert Files(str(tmp_path)).create("a", b"1")
    assert not Files(str(tmp_path)).create("a", b"2")
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_a_file_system_without_links_will_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unsupported(source: Path, target: Path) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", unsupported)
    files = Files(str(tmp_path))
    assert [files.create("a", b"1"), files.create("a", b"2")] == [True, False]
    assert files.read("a") == b"1" and files.names("") == ["a"]


def test_a_creation_that_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with refused("storage.disk_full"):
        Files(str(tmp_path)).create("a", b"1")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("member", [True, False])
def test_what_is_published_in_a_group_s_folder_is_the_group_s(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, member: bool
) -> None:
    """Not who publishes decides, by the group of the scratch folder, who may replace a model."""
    group = 4321 if os.geteuid() == 0 else os.getgroups()[-1]
    root, made = tmp_path / "store", tmp_path / "made"
    root.mkdir()
    os.chown(root, -1, group)
    root.chmod(0o2775)
    (made / "sub").mkdir(parents=True)
    (made / "sub" / "weights").write_text("1")
    if not member:

        def refused(*arguments: object) -> None:
            raise PermissionError(errno.EPERM, "Operation not permitted")

        monkeypatch.setattr(os, "chown", refused)
    publish_folder(Store(str(root)), made, "models/a", Stamp(fingerprint="f"))
    found = [root / "models", *(root / "models").rglob("*")]
    assert {path.name for path in found} == {"models", "a", "sub", "weights", "gateau.json"}
    assert {path.stat().st_gid for path in found} == {group}
    if member:
        assert all(path.stat().st_mode & stat.S_ISGID for path in found if path.is_dir())
    assert not made.exists()


def test_a_text_that_is_there_already_is_left_as_it_is(tmp_path: Path) -> None:
    file = tmp_path / "new" / "file.yaml"
    write_if_other(file, "naïve: 1\n")
    os.utime(file, (1, 1))
    write_if_other(file, "naïve: 1\n")
    assert file.stat().st_mtime == 1
    for other in (b"naive: 1\n", b"na\xefve: 1\n"):  # the second is no UTF-8
        file.write_bytes(other)
        write_if_other(file, "naïve: 1\n")
        assert file.read_text(encoding="utf-8") == "naïve: 1\n"
    assert [each.name for each in file.parent.iterdir()] == ["file.yaml"]


def test_each_file_of_a_finished_folder_is_brought_to_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    for name in ("a/weights", "a/b/part"):
        (tmp_path / name).write_text("x")
    flushed: list[str] = []
    monkeypatch.setattr(os, "fsync", lambda handle: flushed.append(str(Path(f"/proc/self/fd/{handle}").readlink())))
    flush_folder(tmp_path / "a")
    assert sorted(flushed) == [str(tmp_path / name) for name in ("a/b/part", "a/weights")]
