import gzip
import io
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from gateau_dagster.data import streams
from gateau_dagster.data.streams import Chunks, GuardedFile, damage_reason, open_raw, open_stream, unheard
from tests.error_codes import refused

from .inputs import packed, put, zstd


class Failing(io.BytesIO):
    """A disk that fails after its first read."""

    def read(self, size: int | None = -1, /) -> bytes:
        if self.tell() > 0:
            raise OSError(5, "Input/output error")
        return super().read(size)


@pytest.mark.parametrize("name", ["x.jsonl", "x.jsonl.gz", "x.jsonl.zst"])
def test_stream_is_the_content(tmp_path: Path, name: str) -> None:
    data = bytes(range(256)) * 2000
    file = put(tmp_path / name, packed(data, name))
    with open_stream(file, unheard) as stream:
        assert b"".join(Chunks(stream)) == data


@pytest.mark.parametrize("pack", [gzip.compress, zstd])
def test_several_members_are_one_stream(tmp_path: Path, pack: Any) -> None:
    name = "x.jsonl.gz" if pack is gzip.compress else "x.jsonl.zst"
    file = put(tmp_path / name, pack(b"one\n") + pack(b"two\n"))
    with open_stream(file, unheard) as stream:
        assert b"".join(Chunks(stream)) == b"one\ntwo\n"


@pytest.mark.parametrize("name", ["x.jsonl.gz", "x.jsonl.zst"])
def test_a_failing_disk_is_no_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    noise = bytes((i * i * 7919 >> 3) & 255 for i in range(600_000))
    file = put(tmp_path / name, packed(noise, name))
    monkeypatch.setattr(streams, "_opened", lambda address: Failing(Path(address).read_bytes()))
    with refused("storage.disk", "Input/output"), open_stream(file, unheard) as stream:
        for _ in Chunks(stream):
            pass


def test_head_leaves_the_rest() -> None:
    chunks = Chunks(io.BufferedReader(io.BytesIO(b"abcdef"), 2))  # type: ignore[arg-type]
    head = chunks.head(3)
    assert len(head) >= 3
    assert head + b"".join(chunks) == b"abcdef"
    assert chunks.damage is None
    assert chunks.head(3) == b""


def test_raw_file_seeks(tmp_path: Path) -> None:
    counts: list[int] = []
    with open_raw(put(tmp_path / "x.parquet", b"0123456789"), counts.append) as raw:
        assert raw.seekable()
        raw.seek(-3, io.SEEK_END)
        assert raw.tell() == 7
        assert raw.read() == b"789"
    assert sum(counts) == 3


def test_guarded_file_reads_into_any_buffer() -> None:
    counts: list[int] = []
    file = GuardedFile(io.BytesIO(b"abc"), "/d/x", counts.append)
    buffer = bytearray(5)
    assert (file.readable(), file.readinto(buffer), buffer, counts) == (True, 3, bytearray(b"abc\0\0"), [3])


def test_damage_has_a_kind(tmp_path: Path) -> None:
    gz, zst = put(tmp_path / "x.jsonl.gz", b"x"), put(tmp_path / "x.jsonl.zst", b"x")
    assert damage_reason(EOFError(), gz) == "truncated gzip: EOFError"
    assert damage_reason(gzip.BadGzipFile("CRC check failed"), gz) == "damaged gzip: CRC check failed"
    assert damage_reason(OSError("Truncated compressed stream"), zst).startswith("truncated zstd")
    assert damage_reason(pa.ArrowInvalid("ZSTD decompress failed"), zst).startswith("damaged zstd")
