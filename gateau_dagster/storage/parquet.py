"""Read and write Parquet files by row groups, so that tables need not fit into memory twice."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from gateau_dagster.storage.content import row_groups
from gateau_dagster.storage.seal import SEALED, DamagedFileError, read_footer, seal, verified

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
        DamagedFileError: it differs from what was written, or is no Parquet file with these columns.
        OSError: it cannot be read.
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
