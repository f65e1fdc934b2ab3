"""A folder on S3, copied to this machine once for each content."""

import os
from pathlib import Path
from typing import Any

import pytest

from gateau_dagster.data.folder_copy import folder_copy
from gateau_dagster.errors import TransientError
from gateau_dagster.storage.remote import filesystem
from tests.kit.error_codes import refused

FILES = {"README.md": "which splits", "data/train/0.jsonl": '{"a": 1}\n', "data/test.jsonl": '{"a": 2}\n'}


@pytest.fixture
def address(bucket: str) -> str:
    found = f"s3://{bucket}/copies/owner/name"
    for name, text in FILES.items():
        filesystem(found).pipe_file(f"{found}/{name}", text.encode())
    return found


def _read(folder: Path) -> dict[str, str]:
    return {str(file.relative_to(folder)): file.read_text() for file in folder.rglob("*") if file.is_file()}


def _folders(cache: Path) -> list[Path]:
    return [path for path in cache.iterdir() if path.is_dir()]


def test_every_file_is_copied_once(address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = folder_copy(address, tmp_path / "cache")
    assert _read(first) == FILES and _folders(tmp_path / "cache") == [first]
    with monkeypatch.context() as patch:
        patch.setattr("gateau_dagster.data.folder_copy.filesystem", lambda _: _Like(filesystem(address), forbidden))
        assert folder_copy(address + "/", tmp_path / "cache") == first
    filesystem(address).pipe_file(f"{address}/README.md", b"other words")
    second = folder_copy(address, tmp_path / "cache")
    assert second != first and _read(second) == FILES | {"README.md": "other words"}


def forbidden(source: str, target: str) -> None:
    raise AssertionError(f"{source} is there already as {target}")


def test_what_is_left_behind_is_removed_once_nobody_uses_it(address: str, tmp_path: Path) -> None:
    """A process that was killed, and older versions; not what another process writes or reads, nor other folders."""
    cache = tmp_path / "cache"
    copies = [folder_copy(address, cache)]
    for text in ("second", "third"):
        filesystem(address).pipe_file(f"{address}/README.md", text.encode())
        copies.append(folder_copy(address, cache))
    other = folder_copy(f"{address}/data", cache)
    cut_off, being_written = cache / "part-0", cache / "part-1"
    for part in (cut_off, being_written):
        (part / "data").mkdir(parents=True)
    for folder in (cut_off, copies[0], copies[2], other):
        os.utime(folder, (1e9, 1e9))
    assert folder_copy(address, cache) == copies[2], "which is in use again"
    filesystem(address).pipe_file(f"{address}/README.md", b"fourth")
    copies.append(folder_copy(address, cache))
    assert sorted(_folders(cache)) == sorted([*copies[1:], other, being_written])
    notes = {path.stem for path in cache.iterdir() if path.suffix == ".json"}
    assert notes == {folder.name for folder in [*copies[1:], other]}


@pytest.mark.parametrize("damage", ["a changed file", "a lost file", "one more file", "a lost note", "a damaged note"])
def test_a_copy_that_is_not_as_it_was_is_made_again(address: str, tmp_path: Path, damage: str) -> None:
    first = folder_copy(address, tmp_path / "cache")
    note = first.with_name(f"{first.name}.json")
    if damage == "a changed file":
        (first / "data" / "test.jsonl").write_text('{"a": 3}\n')
    elif damage == "a lost file":
        (first / "README.md").unlink()
    elif damage == "one more file":
        (first / "data" / "more.jsonl").touch()
    elif damage == "a lost note":
        note.unlink()
    else:
        note.write_text("{")
    assert folder_copy(address, tmp_path / "cache") == first and _read(first) == FILES
    assert _folders(tmp_path / "cache") == [first]


def test_files_that_change_while_they_are_copied_are_not_taken_for_one_version(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fs: Any = filesystem(address)

    def overtaken(source: str, target: str) -> None:
        type(fs).get_file(fs, source, target)
        fs.pipe_file(f"{address}/README.md", b"newer")

    monkeypatch.setattr("gateau_dagster.data.folder_copy.filesystem", lambda _: _Like(fs, overtaken))
    with pytest.raises(TransientError, match="changed during the copy"):
        folder_copy(address, tmp_path / "cache")
    assert [*(tmp_path / "cache").iterdir()] == []


def test_what_is_not_there_is_said_and_nothing_is_left(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with refused("data.missing", "owner/other"):
        folder_copy(address.replace("name", "other"), tmp_path / "cache")

    fs: Any = filesystem(address)

    def broken(source: str, target: str) -> None:
        if source.endswith(".md"):
            raise PermissionError("Access Denied")
        type(fs).get_file(fs, source, target)

    monkeypatch.setattr("gateau_dagster.data.folder_copy.filesystem", lambda _: _Like(fs, broken))
    with refused("storage.access_denied"):
        folder_copy(address, tmp_path / "cache")
    assert [*(tmp_path / "cache").iterdir()] == []


class _Like:
    """A file system whose downloads are another function's."""

    def __init__(self, fs: Any, get_file: Any) -> None:
        self._fs, self.get_file = fs, get_file

    def __getattr__(self, name: str) -> Any:
        return getattr(self._fs, name)
