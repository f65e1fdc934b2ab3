"""A saved input index: one parquet file in the local cache."""

from __future__ import annotations

import json
import os
import tempfile
from dataclasses import asdict
from pathlib import Path

import polars as pl
from polars.exceptions import PolarsError

from gateau_dagster.data.input_index import INDEX_ACCEPTED, INDEX_REJECTED, InputIndex
from gateau_dagster.data.sources import SourceFile

# Another name for another layout: a file of the old one is then made anew.
_KEY = "gateau_input_index_1"


def save_index(index: InputIndex, path: Path) -> None:
    """Write the index; a reader sees the old file or the new one."""
    header = {
        "signature": index.signature,
        "shards": index.shards,
        "files": [asdict(file) for file in index.files],
        "records": index.records,
        "duplicates_dropped": index.duplicates_dropped,
    }
    frame = pl.concat([index.accepted, index.rejected], how="diagonal")
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    os.close(handle)
    try:
        frame.write_parquet(temporary, metadata={_KEY: json.dumps(header)})
        Path(temporary).replace(path)
    finally:
        Path(temporary).unlink(missing_ok=True)


def load_index(path: Path) -> InputIndex | None:
    """The saved index, or None when there is none or the file is damaged: it is a cache, and is then made anew."""
    if not path.is_file():
        return None
    try:
        header = json.loads(pl.read_parquet_metadata(path)[_KEY])
        files = tuple(SourceFile(**file) for file in header["files"])
        frame = pl.read_parquet(path)
    except (PolarsError, KeyError, TypeError, ValueError):
        return None
    rejected = pl.col("reason").is_not_null()
    return InputIndex(
        signature=header["signature"],
        shards=header["shards"],
        files=files,
        accepted=frame.filter(~rejected).select(INDEX_ACCEPTED.names()),
        rejected=frame.filter(rejected).select(INDEX_REJECTED.names()),
        records=header["records"],
        duplicates_dropped=header["duplicates_dropped"],
    )
