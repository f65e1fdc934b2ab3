"""Read and write sealed Parquet files by row groups, so that tables need not fit into memory twice.

A seal holds digests of the footer and of each column chunk, which detect every flipped bit. It is between the last
chunk and the footer, where the format has room and no reader looks: any Parquet reader accepts a sealed file.
Parquet's own page checksums omit page headers, footer and metadata.

    PAR1 | column chunks | digests, group by group, then the footer's | digest of these | their length | magic | footer
"""

# Why our own digests: a flipped bit in a page may unpack to another number, silently. Parquet's page checksums would
# find that, but are optional for readers, and leave headers and footer out.
#
# What it costs: one SHA-256 over the bytes that are read, and 8 bytes per column chunk. A reader of two columns
# verifies these two only. That matters on S3, where the others are not fetched.

import hashlib
import tempfile
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from gateau_dagster.storage.content import row_groups

# In the metadata of a sealed file, so that a destroyed seal is not taken for a missing one.
SEALED = b"gateau.sealed"
_MAGIC = b"GTSEAL01"
_DIGEST_BYTES = 8
_TRAILER_BYTES = _DIGEST_BYTES + 4 + len(_MAGIC)
_PARQUET = b"PAR1"
_END_BYTES = 4 + len(_PARQUET)  # the footer's length precedes it
_TAIL_BYTES = 2**16
_PIECE_BYTES = 2**24


class DamagedFileError(ValueError):
    """Bytes of a file differ from what was written."""


@dataclass(frozen=True, kw_only=True)
class Footer:
    """A verified footer. `digests`: of the chunks, by group and column; empty without a seal.

    after_chunks: the end of the last chunk.
    """

    metadata: pq.FileMetaData
    digests: tuple[tuple[bytes, ...], ...]
    after_chunks: int


@dataclass(frozen=True, kw_only=True)
class _Chunk:
    """A column chunk: its range of bytes, and their digest if the file is sealed."""

    start: int
    end: int
    digest: bytes | None


class _Reader:
    """Reads ranges of a file; its end, with footer and seal, in one request."""

    def __init__(self, file: Any) -> None:
        self._file = file
        self.size = int(file.seek(0, 2))
        # 64 KiB hold footer and seal of nearly all tables, so a stamp is one request.
        self._tail_start = max(0, self.size - _TAIL_BYTES)
        file.seek(self._tail_start)
        self._tail: bytes = file.read(self.size - self._tail_start)

    def at(self, start: int, end: int) -> bytes:
        """Return the bytes from `start` up to `end`."""
        if start >= self._tail_start:
            return self._tail[start - self._tail_start : end - self._tail_start]
        self._file.seek(start)
        return self._file.read(end - start)


def seal(path: Path) -> None:
    """Seal a Parquet file that was just written with `SEALED` in its metadata, before its first use."""
    with path.open("rb+") as file:
        reader = _Reader(file)
        start, footer = _footer(reader)
        chunks = _chunks(_parsed(footer), (), None)
        body = b"".join([*(_digest(reader.at(chunk.start, chunk.end)) for chunk in chunks), _digest(footer)])
        file.seek(start)
        file.write(body + _digest(body) + len(body).to_bytes(4, "little") + _MAGIC + footer)


def read_footer(file: Any) -> Footer:
    """Return the footer of a seekable binary file, one of Arrow's or a remote one.

    Raises:
        DamagedFileError: the file differs from what was written, or is not a Parquet file.
        OSError: the file cannot be read.
    """
    reader = _Reader(file)
    start, footer = _footer(reader)
    body = _seal_body(reader, start)
    if body is not None and _digest(footer) != body[-_DIGEST_BYTES:]:
        raise DamagedFileError("its footer has changed since it was written")
    metadata = _parsed(footer)
    if body is None:
        if SEALED in (metadata.metadata or {}):
            raise DamagedFileError("its seal is broken")
        return Footer(metadata=metadata, digests=(), after_chunks=start)
    each = [body[place : place + _DIGEST_BYTES] for place in range(0, len(body) - _DIGEST_BYTES, _DIGEST_BYTES)]
    width = metadata.num_columns
    groups = tuple(tuple(each[group * width : (group + 1) * width]) for group in range(metadata.num_row_groups))
    return Footer(metadata=metadata, digests=groups, after_chunks=start - len(body) - _TRAILER_BYTES)


@contextmanager
def verified(file: Any, columns: Collection[str] | None = None) -> Iterator[pq.ParquetFile]:
    """Yield a table after verifying every byte of these columns (None: all), which can then be read.

    Those of a remote file are fetched once, to a temporary file with holes for the others.

    Raises:
        DamagedFileError, OSError: for the reasons of `read_footer`.
    """
    footer = read_footer(file)
    chunks = _chunks(footer.metadata, footer.digests, columns)
    if isinstance(file, pa.NativeFile):
        _verify(file, chunks)
        yield pq.ParquetFile(file, metadata=footer.metadata, pre_buffer=False)
        return
    with tempfile.NamedTemporaryFile(prefix="gateau-") as copy:
        _fetch(file, footer, chunks, copy)
        with pa.OSFile(copy.name) as local:
            _verify(local, chunks)
            yield pq.ParquetFile(local, metadata=footer.metadata, pre_buffer=False)


def _chunks(
    metadata: pq.FileMetaData, digests: tuple[tuple[bytes, ...], ...], columns: Collection[str] | None
) -> list[_Chunk]:
    found = []
    for group in range(metadata.num_row_groups):
        for number in range(metadata.num_columns):
            column = metadata.row_group(group).column(number)
            if columns is None or column.path_in_schema.split(".", maxsplit=1)[0] in columns:
                start = column.dictionary_page_offset if column.has_dictionary_page else column.data_page_offset
                digest = digests[group][number] if digests else None
                found.append(_Chunk(start=start, end=start + column.total_compressed_size, digest=digest))
    return found


def _verify(file: pa.NativeFile, chunks: list[_Chunk]) -> None:
    for chunk in chunks:
        file.seek(chunk.start)
        if chunk.digest is not None and _digest(file.read(chunk.end - chunk.start)) != chunk.digest:
            raise DamagedFileError(f"its bytes {chunk.start} to {chunk.end} have changed since they were written")


def _fetch(file: Any, footer: Footer, chunks: list[_Chunk], copy: Any) -> None:
    """Fetch neighbouring chunks in one request, up to a limit of memory."""
    pieces = [(chunk.start, chunk.end) for chunk in chunks] + [(footer.after_chunks, int(file.seek(0, 2)))]
    joined = [(0, len(_PARQUET))]
    for start, end in pieces:
        if start == joined[-1][1] and end - joined[-1][0] <= _PIECE_BYTES:
            joined[-1] = (joined[-1][0], end)
        else:
            joined.append((start, end))
    for start, end in joined:
        file.seek(start)
        copy.seek(start)
        copy.write(file.read(end - start))
    copy.flush()


def _seal_body(reader: _Reader, footer_start: int) -> bytes | None:
    """Return the digests before the footer; None without a seal."""
    trailer = reader.at(max(0, footer_start - _TRAILER_BYTES), footer_start)
    if trailer[-len(_MAGIC) :] != _MAGIC:
        return None
    end = footer_start - _TRAILER_BYTES
    length = int.from_bytes(trailer[_DIGEST_BYTES : _DIGEST_BYTES + 4], "little")
    body = reader.at(max(0, end - length), end)
    if len(body) < _DIGEST_BYTES or _digest(body) != trailer[:_DIGEST_BYTES]:
        raise DamagedFileError("its seal is broken")
    return body


def _footer(reader: _Reader) -> tuple[int, bytes]:
    """Return where the footer begins, and its bytes up to the end of the file."""
    end = reader.at(max(0, reader.size - _END_BYTES), reader.size)
    start = reader.size - _END_BYTES - int.from_bytes(end[:4], "little")
    if end[4:] != _PARQUET or start < len(_PARQUET):
        raise DamagedFileError("it is not a complete Parquet file")
    return start, reader.at(start, reader.size)


def _parsed(footer: bytes) -> pq.FileMetaData:
    try:
        return pq.read_metadata(pa.BufferReader(_PARQUET + footer))
    except (pa.ArrowException, OSError) as error:
        raise DamagedFileError(f"its footer cannot be read: {error}") from error


def _digest(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()[:_DIGEST_BYTES]


_BATCH_BYTES, _BATCH_ROWS = 16 * 2**20, 2**16
_ROWS_FOR_THREADS = 2**12  # starting Arrow's threads takes longer than reading fewer


def metadata(file: Any) -> dict[bytes, bytes]:
    """Return the metadata in a Parquet file's footer; empty if the footer is damaged."""
    try:
        return read_footer(file).metadata.metadata or {}
    except DamagedFileError:
        return {}


def read_columns(columns: list[str] | None, file: Any) -> pa.Table:
    """Return these columns of a table, in this order (None: all), with each of their bytes verified.

    Raises:
        DamagedFileError: a byte differs from what was written.
        pa.ArrowException, OSError: the file cannot be read.
    """
    with verified(file, columns) as found:
        table = found.read(columns=columns, use_threads=found.metadata.num_rows >= _ROWS_FOR_THREADS)
    return table if columns is None else table.select(columns)


def read_local(path: Path, columns: list[str] | None = None) -> tuple[pl.DataFrame, dict[bytes, bytes]]:
    """Return table and metadata of a file on this machine, verified like `read_columns`.

    Raises:
        DamagedFileError: the file differs from what was written, or is not a Parquet file with these columns.
        OSError: the file cannot be read.
    """
    with pa.OSFile(str(path)) as file:
        try:
            table = read_columns(columns, file)
            return pl.DataFrame(pl.from_arrow(table)), table.schema.metadata or {}
        except (pa.ArrowException, pl.exceptions.PanicException, UnicodeDecodeError) as error:
            raise DamagedFileError(" ".join(str(error).split())) from error


def verified_schema(file: Any) -> pa.Table:
    """Return a table without rows, after verifying every byte of the file like `read_columns`."""
    with verified(file) as found:
        return found.schema_arrow.empty_table()


def wanted_rows(sample_ids: pl.DataFrame, file: Any) -> pa.Table:
    """Return the rows of these samples, verified like `read_columns`; a large table is read in batches."""
    with verified(file, ["sample_id"]) as parquet:
        ids = parquet.read(columns=["sample_id"])["sample_id"].to_pylist()
        sizes = [parquet.metadata.row_group(number).total_byte_size for number in range(parquet.num_row_groups)]
    wanted = {*sample_ids["sample_id"]}
    keep = np.fromiter((one in wanted for one in ids), np.bool_, len(ids))
    if sum(sizes) <= _BATCH_BYTES:
        return read_columns(None, file).filter(pa.array(keep))
    with verified(file, None if keep.any() else ()) as parquet:
        rows = int(np.clip(_BATCH_BYTES * keep.size // max(1, sum(sizes)), 1, _BATCH_ROWS))
        batches, first = [], 0
        for batch in parquet.iter_batches(rows) if keep.any() else ():
            marked = keep[first : first + batch.num_rows]
            if marked.any():
                batches.append(batch.filter(pa.array(marked)))
            first += batch.num_rows
        return pa.Table.from_batches(batches, schema=parquet.schema_arrow)


def write_parquet(frame: pl.DataFrame, metadata: Mapping[bytes, bytes], path: Path) -> None:
    """Write the table by row groups, without a second copy in memory, and seal it."""
    schema = frame.clear().to_arrow().schema.with_metadata({**metadata, SEALED: b"1"})
    texts: Any = [name for name, kind in frame.schema.items() if kind == pl.String]  # numbers seldom repeat
    with pq.ParquetWriter(str(path), schema, compression="zstd", use_dictionary=texts) as writer:
        for part in row_groups(frame) if frame.height else ():  # `datasets` cannot read a group without rows
            writer.write_table(part.to_arrow(), row_group_size=part.height)
    seal(path)
