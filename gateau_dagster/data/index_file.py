"""What is known of the input: identity, place and lengths of every sample; and its file in the cache."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path

import polars as pl
from polars.exceptions import PolarsError

from gateau_dagster.data.catalogue import ACCEPTED, REJECTED
from gateau_dagster.data.sample import text_digest
from gateau_dagster.data.sources import SourceFile
from gateau_dagster.storage.files import Files

# Part of every shard's digest: raise it when reading the same bytes gives other samples or reasons.
CODE_VERSION = "1"
INDEX_ACCEPTED = pl.Schema({**ACCEPTED, "shard": pl.Int32()})
INDEX_REJECTED = pl.Schema({**REJECTED, "shard": pl.Int32()})


@dataclass(frozen=True, kw_only=True, eq=False)
class InputIndex:
    """Accepted and rejected samples of the input with their shards (schemas INDEX_ACCEPTED and INDEX_REJECTED)."""

    signature: str
    shards: int
    files: tuple[SourceFile, ...]
    accepted: pl.DataFrame
    rejected: pl.DataFrame
    records: int
    duplicates_dropped: int

    def shard_digest(self, shard: int) -> str:
        """SHA-256 (hex) of what the shard's two tables hold: ids, contents, sources, and reasons of rejects."""
        assert 0 <= shard < self.shards, shard
        return self._shard_digests.get(shard) or text_digest(["raw_long_sft", CODE_VERSION])

    @cached_property
    def _shard_digests(self) -> dict[int, str]:
        parts: dict[int, list[str]] = {}
        accepted = self.accepted.select("shard", "sample_id", "digest", "source").sort("sample_id")
        for shard, *values in accepted.iter_rows():
            parts.setdefault(shard, []).extend(("+", *values))
        rejected = self.rejected.select("shard", "sample_id", "reason").sort("sample_id", "reason")
        for shard, *values in rejected.iter_rows():
            parts.setdefault(shard, []).extend(("-", *values))
        return {shard: text_digest(["raw_long_sft", CODE_VERSION, *values]) for shard, values in parts.items()}


# Another name for another layout: a file of the old one is then rebuilt.
_KEY = "gateau_input_index_1"


def save_index(index: InputIndex, path: Path) -> None:
    """Write the index; a reader sees the old file or the new one. Raises GateauError for a full disk and the like."""
    header = {
        "signature": index.signature,
        "shards": index.shards,
        "files": [asdict(file) for file in index.files],
        "records": index.records,
        "duplicates_dropped": index.duplicates_dropped,
    }
    frame = pl.concat([index.accepted, index.rejected], how="diagonal")
    metadata = {_KEY: json.dumps(header)}
    Files(str(path.parent)).write_by(path.name, lambda file: frame.write_parquet(file, metadata=metadata))


def load_index(path: Path) -> InputIndex | None:
    """The saved index, or None when there is none or the file is damaged: it is a cache, and is then rebuilt."""
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
