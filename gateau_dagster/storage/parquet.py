"""Parquet files group by group: what is read or written need not fit into memory a second time."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from gateau_dagster.storage.content import row_groups

_BATCH_BYTES, _BATCH_ROWS = 16 * 2**20, 2**16


def metadata(file: Any) -> dict[bytes, bytes]:
    """The metadata in a Parquet file's footer; none when the footer is damaged.

    PyArrow raises OSError for some damages, as the file system does for a lost disk; only the latter has a number.
    """
    try:
        return pq.read_metadata(file).metadata or {}
    except pa.ArrowInvalid:
        return {}
    except OSError as error:
        if error.errno is not None or type(error) is not OSError:
            raise
        return {}


def wanted_rows(sample_ids: pl.DataFrame, file: Any, *, threads: bool) -> pa.Table:
    """The rows of these samples; of the other rows, one batch is in memory at a time."""
    parquet = pq.ParquetFile(file, pre_buffer=False)
    ids = pl.DataFrame(pl.from_arrow(parquet.read(["sample_id"], use_threads=threads))).with_row_index("row")
    keep = np.zeros(ids.height, dtype=np.bool_)
    keep[ids.join(sample_ids, on="sample_id", how="semi")["row"].to_numpy()] = True
    sizes = [parquet.metadata.row_group(number).total_byte_size for number in range(parquet.num_row_groups)]
    rows = int(np.clip(_BATCH_BYTES * keep.size // max(1, sum(sizes)), 1, _BATCH_ROWS))
    batches, first = [], 0
    for batch in parquet.iter_batches(rows, use_threads=threads) if keep.any() else ():
        marked = keep[first : first + batch.num_rows]
        if marked.any():
            batches.append(batch.filter(pa.array(marked)))
        first += batch.num_rows
    return pa.Table.from_batches(batches, schema=parquet.schema_arrow)


def write_parquet(frame: pl.DataFrame, metadata: Mapping[bytes, bytes], path: Path) -> None:
    """Group by group, so that no second copy of the table is made in memory."""
    schema = frame.clear().to_arrow().schema.with_metadata(metadata)
    texts: Any = [name for name, kind in frame.schema.items() if kind == pl.String]  # numbers seldom repeat
    with pq.ParquetWriter(str(path), schema, compression="zstd", use_dictionary=texts) as writer:
        for part in row_groups(frame):
            writer.write_table(part.to_arrow(), row_group_size=max(1, part.height))
