"""A file of any source as a stream of decompressed bytes."""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, cast

import pyarrow as pa

from gateau_dagster.data.sources import SourceFile
from gateau_dagster.storage.failures import readable_input
from gateau_dagster.storage.remote import filesystem, is_remote

# What decompressors raise for damaged data. Failures of the disk or the network never look like this: GuardedFile
# has turned them into GateauError before a decompressor sees them.
DAMAGE = (EOFError, gzip.BadGzipFile, zlib.error, pa.ArrowException, OSError)
# A decompressor that fails loses the read it is in, so reads are small.
_BUFFER = 1 << 14
LONGEST_RECORD = 256 << 20
"""Bytes of a record, some fifty million words: a longer one is damaged, or made to fill the memory, and is rejected."""
_BLOCK = 8 << 20


class GuardedFile(io.RawIOBase):
    """A binary file whose failures are GateauErrors; reports how many bytes were read."""

    def __init__(self, raw: IO[bytes], address: str, on_bytes: Callable[[int], None]) -> None:
        super().__init__()
        self._raw, self._address, self._on_bytes = raw, address, on_bytes

    def readable(self) -> bool:
        """True: this file is only for reading."""
        return True

    def seekable(self) -> bool:
        """Whether the file below can seek."""
        return self._raw.seekable()

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """As of any file."""
        with readable_input(self._address):
            return self._raw.seek(offset, whence)

    def tell(self) -> int:
        """As of any file."""
        return self._raw.tell()

    def readinto(self, buffer: Any) -> int:
        """Fill `buffer` as far as the file goes; returns the bytes read, 0 at the end."""
        view = memoryview(buffer).cast("B")
        with readable_input(self._address):
            data = self._raw.read(len(view))
        view[: len(data)] = data
        self._on_bytes(len(data))
        return len(data)


def unheard(count: int) -> None:
    """The bytes that nobody counts."""
    del count


def _opened(address: str) -> Any:
    if is_remote(address):
        return filesystem(address).open(address, "rb", block_size=_BLOCK)
    return Path(address).open("rb", buffering=0)


@contextmanager
def open_raw(file: SourceFile, on_bytes: Callable[[int], None]) -> Iterator[io.BufferedReader]:
    """The file's bytes as they are stored, seekable."""
    with readable_input(file.address):
        raw = _opened(file.address)
    with raw:
        yield io.BufferedReader(GuardedFile(cast(IO[bytes], raw), file.address, on_bytes), 1 << 18)


@contextmanager
def open_stream(file: SourceFile, on_bytes: Callable[[int], None]) -> Iterator[io.BufferedReader]:
    """The file's decompressed bytes. Reading raises one of DAMAGE when the compressed data are damaged."""
    with open_raw(file, on_bytes) as raw:
        if file.compression == "gz":
            yield cast(io.BufferedReader, gzip.GzipFile(fileobj=raw, mode="rb"))
        elif file.compression == "zst":
            # PythonFile closes what it wraps; the stream is closed here, in the right order, by the context manager.
            stream = pa.CompressedInputStream(pa.PythonFile(raw, mode="r"), "zstd")
            yield io.BufferedReader(cast(io.RawIOBase, stream), _BUFFER)
        else:
            yield raw


def damage_reason(error: BaseException, file: SourceFile) -> str:
    """What to tell about damaged compressed data; the kind stands before the colon."""
    name = {"gz": "gzip", "zst": "zstd"}.get(file.compression or "", "")
    text = str(error) or type(error).__name__
    truncated = isinstance(error, EOFError) or "truncated" in text.lower() or "ended before" in text.lower()
    return f"{'truncated' if truncated else 'damaged'} {name}: {text}"


def too_long(what: str) -> str:
    """The reason against a record, or a whole text, of more than LONGEST_RECORD bytes."""
    return f"too long: the {what} has more than {LONGEST_RECORD >> 20} MiB"


class Chunks:
    """Iterates over the pieces of a stream; damaged data end it, and stay in `damage` for whoever wants to tell."""

    def __init__(self, stream: io.BufferedReader) -> None:
        self._stream = stream
        self.damage: BaseException | None = None

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        try:
            # read1: what was decompressed before the damage is delivered, not lost with the exception.
            piece = self._stream.read1(1 << 18) if self.damage is None else b""
        except DAMAGE as error:
            self.damage = error
            piece = b""
        if not piece:
            raise StopIteration
        return piece

    def head(self, size: int) -> bytes:
        """The first `size` bytes or some more, fewer only if there are no more."""
        pieces: list[bytes] = []
        while size > 0 and (piece := next(self, b"")):
            pieces.append(piece)
            size -= len(piece)
        return b"".join(pieces)
