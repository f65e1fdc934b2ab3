"""Files that are one text: read whole, or refused with the reason."""

import gzip
from pathlib import Path

import pytest

from gateau_dagster.data.readers import read_plain_text
from gateau_dagster.data.sources import Problem, Record, SourceFile, resolve_files


def file_of(folder: Path, name: str, content: bytes) -> SourceFile:
    (folder / name).write_bytes(content)
    (found,) = resolve_files(name, folder, plain_texts=True)
    return found


@pytest.mark.parametrize("name", ["book.txt", "main.py", "LICENSE"])
def test_any_file_is_a_text(name: str, tmp_path: Path) -> None:
    text = "Ünß\r\n  indented\n"
    assert read_plain_text(file_of(tmp_path, name, text.encode())) == Record(number=1, value=text)
    packed = file_of(tmp_path, f"{name}.gz", gzip.compress(b"\xef\xbb\xbf" + text.encode()))
    assert read_plain_text(packed) == Record(number=1, value=text)


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("a.txt", b" \n", "empty file: a.txt has no content"),
        ("a.bin", b"ab\0c", "wrong file type: a.bin is binary data"),
        ("a.txt", b"abc\xff", "invalid UTF-8: byte 0xff at offset 3"),
        ("a.txt.gz", gzip.compress(b"many words " * 999, mtime=0)[:40], "truncated gzip: "),
    ],
)
def test_what_is_no_text_is_a_problem(name: str, content: bytes, reason: str, tmp_path: Path) -> None:
    found = read_plain_text(file_of(tmp_path, name, content))
    assert isinstance(found, Problem) and found.reason.startswith(reason) and found.number == 0


def test_of_a_folder_texts_are_taken_where_they_are_asked_for(tmp_path: Path) -> None:
    for name in ("a.txt", "b.txt.zst", "c.jsonl", "d.py"):
        (tmp_path / name).write_bytes(b"x")
    assert [file.name for file in resolve_files(".", tmp_path)] == ["c.jsonl"]
    assert [file.name for file in resolve_files(".", tmp_path, plain_texts=True)] == ["a.txt", "b.txt.zst", "c.jsonl"]
    assert [file.name for file in resolve_files("*.py", tmp_path)] == ["d.py"]
