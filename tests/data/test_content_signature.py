import os
from collections.abc import Callable
from pathlib import Path

import pytest

from gateau_dagster.data.sources import content_signature, resolve_files


def signature(folder: Path, cache: Path) -> str:
    return content_signature(resolve_files("*.jsonl", folder), cache)


def test_content_and_names_count_but_not_times(tmp_path: Path) -> None:
    cache = tmp_path / "cache" / "digests.json"
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"one")
    first = signature(tmp_path, cache)
    os.utime(path, ns=(5, 5))
    assert signature(tmp_path, cache) == first
    path.write_bytes(b"two")
    changed = signature(tmp_path, cache)
    assert changed != first
    path.rename(tmp_path / "b.jsonl")
    assert signature(tmp_path, cache) not in {first, changed}


def test_an_unchanged_file_is_not_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache, path = tmp_path / "digests.json", tmp_path / "a.jsonl"
    path.write_bytes(b"one")
    os.utime(path, ns=(5, 5))
    first = signature(tmp_path, cache)
    written = cache.stat().st_mtime_ns
    path.write_bytes(b"two")
    os.utime(path, ns=(5, 5))  # same size and time: nothing tells that it was written
    assert signature(tmp_path, cache) == first
    assert cache.stat().st_mtime_ns == written
    cache.write_text("{damaged", encoding="utf-8")
    assert signature(tmp_path, cache) != first


def test_remote_files_are_known_by_their_stamp(s3_put: Callable[[str, bytes], None], tmp_path: Path) -> None:
    seen = []
    for body in (b"one", b"one", b"two"):
        s3_put("content/a.jsonl", body)
        seen.append(content_signature(resolve_files("s3://data-bucket/content/*", tmp_path), tmp_path / "c.json"))
    assert seen[0] == seen[1] != seen[2]
    assert not (tmp_path / "c.json").exists()
