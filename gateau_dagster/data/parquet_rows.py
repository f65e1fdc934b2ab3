"""Read rows of a parquet file as records, a few at a time."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from itertools import chain
from typing import IO, Any

import pyarrow as pa
import pyarrow.parquet as pq

from gateau_dagster.data.sources import Problem, Record, SourceFile
from gateau_dagster.data.streams import LONGEST_RECORD, Chunks, damage_reason, open_raw, open_stream, too_long

_ROWS = 32
_MAGIC = b"PAR1"
# A packed file may hold this multiple of its size, and in any case these bytes: parquet is already packed.
_MOST_TIMES, _ALWAYS_BYTES = 64, 1 << 30


def read_parquet(
    file: SourceFile, wanted: Collection[int] | None, on_bytes: Callable[[int], None]
) -> Iterator[Record | Problem]:
    """Stream the rows (numbers from 1); a damaged row group is one Problem and affects no other group."""
    with _seekable(file, on_bytes) as raw:
        if isinstance(raw, Problem):
            yield raw
            return
        try:
            # Without threads: a thread that held `raw`, a Python object, at the end of the process would abort it.
            parquet = pq.ParquetFile(raw, pre_buffer=False)
        except (pa.ArrowException, UnicodeDecodeError, OSError) as error:
            found = f"{file.name} is no (complete) parquet file: {_first(error)}"
            yield Problem(number=0, reason=f"wrong file type: {found}")
            return
        if repeated := [name for name, count in Counter(parquet.schema_arrow.names).items() if count > 1]:
            yield Problem(number=0, reason=f"repeated column: {file.name} has several that are called {repeated[0]!r}")
            return
        if parquet.metadata.num_rows == 0:
            yield Problem(number=0, reason=f"empty file: {file.name} has no rows")
        start = 1
        for group in range(parquet.num_row_groups):
            end = start + parquet.metadata.row_group(group).num_rows
            if wanted is None or any(start <= number < end for number in wanted):
                yield from _read_group(parquet, group, start, wanted)
            start = end


def _read_group(
    parquet: pq.ParquetFile, group: int, start: int, wanted: Collection[int] | None
) -> Iterator[Record | Problem]:
    number, facts = start, parquet.metadata.row_group(group)
    # The batch is small enough that rows of usual length need no more memory than the longest one.
    rows = min(_ROWS, max(1, LONGEST_RECORD * facts.num_rows // max(1, facts.total_byte_size)))
    try:
        for batch in parquet.iter_batches(batch_size=rows, row_groups=[group], use_threads=False):
            for index in range(batch.num_rows):
                if wanted is None or number in wanted:
                    yield _row(batch, index, number)
                number += 1
    except (pa.ArrowException, OSError) as error:
        yield Problem(number=number, reason=f"damaged parquet: row group {group}: {_first(error)}")


def _row(batch: pa.RecordBatch, index: int, number: int) -> Record | Problem:
    row = batch.slice(index, 1)
    if row.nbytes > LONGEST_RECORD:
        return Problem(number=number, reason=too_long("row"))
    try:
        return Record(number=number, value={name: _value(row.column(name)) for name in row.schema.names})
    except UnicodeDecodeError as error:
        return Problem(number=number, reason=f"invalid UTF-8: byte 0x{error.object[error.start]:02x} in a text column")


def _value(column: pa.Array) -> Any:
    """Return a row's value of one column: Python's, or Arrow's if Python has none, as for dates after the year 9999.

    Such values are neither text nor ids, and other columns of a row need not be understood.
    """
    try:
        return column.to_pylist()[0]
    except UnicodeDecodeError:
        raise
    except (ValueError, ArithmeticError, LookupError):  # parts of a second, sizes, unknown time zones
        return column[0]


@contextmanager
def _seekable(file: SourceFile, on_bytes: Callable[[int], None]) -> Iterator[IO[bytes] | Problem | Any]:
    """Yield the file, or a temporary file with its decompressed content: parquet is read from its end."""
    if file.compression is None:
        with open_raw(file, on_bytes) as raw:
            yield raw
        return
    with tempfile.TemporaryFile() as spooled:
        problem = _unpack(file, spooled, on_bytes)
        spooled.seek(0)
        yield problem or spooled


def _unpack(file: SourceFile, target: IO[bytes], on_bytes: Callable[[int], None]) -> Problem | None:
    """Write the content of a packed file to `target`; if it is no parquet, only its beginning."""
    room = most = max(_ALWAYS_BYTES, _MOST_TIMES * file.size)
    with open_stream(file, on_bytes) as stream:
        chunks = Chunks(stream)
        head = chunks.head(len(_MAGIC))
        for piece in chain([head], chunks if head.startswith(_MAGIC) else ()):
            room -= len(piece)
            if room < 0:
                text = f"{file.name} holds more than {most >> 20:,} MiB, {most // file.size:,} times its size or more"
                return Problem(number=0, reason=f"too long: {text}: unpack it, if that is meant")
            target.write(piece)
    return None if chunks.damage is None else Problem(number=0, reason=damage_reason(chunks.damage, file))


def _first(error: BaseException) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
