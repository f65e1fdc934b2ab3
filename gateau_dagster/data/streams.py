"""Open a file of any source as a stream of decompressed bytes."""

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

# Exceptions of decompressors for damaged data. Failures of the disk or the network are not among them: GuardedFile has
# turned those into GateauError first.
DAMAGE = (EOFError, gzip.BadGzipFile, zlib.error, pa.ArrowException, OSError)
# A decompressor that fails loses its current read, so reads are small.
_BUFFER = 1 << 14
LONGEST_RECORD = 256 << 20
"""The most bytes of a record, some fifty million words: a longer one is damaged or hostile, and is rejected."""
_BLOCK = 8 << 20


class GuardedFile(io.RawIOBase):
    """A binary file whose failures are GateauErrors; it reports the number of bytes read."""

    def __init__(self, raw: IO[bytes], address: str, on_bytes: Callable[[int], None]) -> None:
        super().__init__()
        self._raw, self._address, self._on_bytes = raw, address, on_bytes

    def readable(self) -> bool:
        """Return True: this file is only for reading."""
        return True

    def seekable(self) -> bool:
        """Return whether the underlying file can seek."""
        return self._raw.seekable()

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Move the position, as any file does."""
        with readable_input(self._address):
            return self._raw.seek(offset, whence)

    def tell(self) -> int:
        """Return the position."""
        return self._raw.tell()

    def readinto(self, buffer: Any) -> int:
        """Fill `buffer` as far as the file goes; return the bytes read, 0 at the end."""
        view = memoryview(buffer).cast("B")
        with readable_input(self._address):
            data = self._raw.read(len(view))
        view[: len(data)] = data
        self._on_bytes(len(data))
        return len(data)


def unheard(count: int) -> None:
    """Ignore the count."""
    del count


def _opened(address: str) -> Any:
    if is_remote(address):
        return filesystem(address).open(address, "rb", block_size=_BLOCK)
    # Without a buffer, since `open_raw` has one.
    return Path(address).open("rb", buffering=0)


@contextmanager
def open_raw(file: SourceFile, on_bytes: Callable[[int], None]) -> Iterator[io.BufferedReader]:
    """Yield the file's bytes as they are stored, seekable."""
    with readable_input(file.address):
        raw = _opened(file.address)
    with raw:
        yield io.BufferedReader(GuardedFile(cast(IO[bytes], raw), file.address, on_bytes), 1 << 18)


@contextmanager
def open_stream(file: SourceFile, on_bytes: Callable[[int], None]) -> Iterator[io.BufferedReader]:
    """Yield the file's decompressed bytes. Reading raises one of DAMAGE if the compressed data are damaged."""
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
    """Return the reason for damaged compressed data; its kind precedes the colon."""
    name = {"gz": "gzip", "zst": "zstd"}.get(file.compression or "", "")
    text = str(error) or type(error).__name__
    truncated = isinstance(error, EOFError) or "truncated" in text.lower() or "ended before" in text.lower()
    return f"{'truncated' if truncated else 'damaged'} {name}: {text}"


def too_long(what: str) -> str:
    """Return the reason against a record, or a whole text, of more than LONGEST_RECORD bytes."""
    return f"too long: the {what} has more than {LONGEST_RECORD >> 20} MiB"


class Chunks:
    """The pieces of a stream; damaged data end it, and `damage` keeps the error."""

    def __init__(self, stream: io.BufferedReader) -> None:
        self._stream = stream
        self.damage: BaseException | None = None

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        try:
            # read1 delivers what was decompressed before the damage, which read would lose with the exception.
            piece = self._stream.read1(1 << 18) if self.damage is None else b""
        except DAMAGE as error:
            self.damage = error
            piece = b""
        if not piece:
            raise StopIteration
        return piece

    def head(self, size: int) -> bytes:
        """Return at least `size` bytes from the beginning, fewer only if there are no more."""
        pieces: list[bytes] = []
        while size > 0 and (piece := next(self, b"")):
            pieces.append(piece)
            size -= len(piece)
        return b"".join(pieces)
