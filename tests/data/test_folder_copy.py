"""A folder on S3, copied to this machine once for each content."""

from pathlib import Path
from typing import Any

import pytest

from gateau_dagster.data.folder_copy import folder_copy
from gateau_dagster.errors import GateauError
from gateau_dagster.storage.remote import filesystem

FILES = {"README.md": "which splits", "data/train/0.jsonl": '{"a": 1}\n', "data/test.jsonl": '{"a": 2}\n'}


@pytest.fixture
def address(bucket: str) -> str:
    found = f"s3://{bucket}/copies/owner/name"
    for name, text in FILES.items():
        filesystem(found).pipe_file(f"{found}/{name}", text.encode())
    return found


def _read(folder: Path) -> dict[str, str]:
    return {str(file.relative_to(folder)): file.read_text() for file in folder.rglob("*") if file.is_file()}


def test_every_file_is_copied_once(address: str, tmp_path: Path) -> None:
    first = folder_copy(address, tmp_path / "cache")
    assert _read(first) == FILES and [*(tmp_path / "cache").iterdir()] == [first]
    marked = first / "README.md"
    marked.write_text("kept")
    assert folder_copy(address + "/", tmp_path / "cache") == first and marked.read_text() == "kept"
    filesystem(address).pipe_file(f"{address}/README.md", b"other words")
    second = folder_copy(address, tmp_path / "cache")
    assert second != first and _read(second) == FILES | {"README.md": "other words"}


def test_what_is_not_there_is_said_and_nothing_is_left(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(GateauError, match=r"owner/other: there are no files"):
        folder_copy(address.replace("name", "other"), tmp_path / "cache")

    fs: Any = filesystem(address)

    def broken(source: str, target: str) -> None:
        if source.endswith(".md"):
            raise PermissionError("Access Denied")
        type(fs).get_file(fs, source, target)

    monkeypatch.setattr("gateau_dagster.data.folder_copy.filesystem", lambda _: _Like(fs, broken))
    with pytest.raises(GateauError, match="access denied"):
        folder_copy(address, tmp_path / "cache")
    assert [*(tmp_path / "cache").iterdir()] == []


class _Like:
    """A file system whose downloads are another function's."""

    def __init__(self, fs: Any, get_file: Any) -> None:
        self._fs, self.get_file = fs, get_file

    def __getattr__(self, name: str) -> Any:
        return getattr(self._fs, name)
