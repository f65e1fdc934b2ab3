"""What the long input holds, by shard: ids and digests without the texts, so that changes are found cheaply."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import polars as pl

from gateau_dagster.data.catalogue import ACCEPTED, REJECTED
from gateau_dagster.data.sample import text_digest
from gateau_dagster.data.sources import SourceFile

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
