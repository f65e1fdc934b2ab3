"""Hold the input's samples with their shards, and what is known of them before they are read."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import polars as pl

from gateau_dagster.data.record_fields import FieldCounts
from gateau_dagster.data.rejects import Contexts, Rejects, contexts_among, rejects_among
from gateau_dagster.data.sample import SHORTEST_DOCUMENT, text_digest
from gateau_dagster.data.sources import SourceFile
from gateau_dagster.readable import percentage, plural

# Part of every shard's digest: raise it only if the tables of all shards change for another reason than their texts.
CODE_VERSION = "3"


class Begun(NamedTuple):
    """The number of conversations that begin a longer one, and the ids of the first and of its longer one."""

    count: int = 0
    first: str = ""
    longer: str = ""
    left_out: bool = False


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
    fields: FieldCounts
    begun: Begun

    @cached_property
    def rejects(self) -> Rejects:
        """Return the rejects among the records; a record that repeats another counts once."""
        return rejects_among(self.rejected, self.usable_records + self.rejected.height, named=True)

    @cached_property
    def usable_records(self) -> int:
        """Return how many records have a sample; with `long_sft.turns: each` one may have several."""
        return self.accepted.select("file", "record").n_unique()

    @cached_property
    def contexts(self) -> Contexts:
        """Return how many samples have no context, and how it was separated from the instruction in others."""
        return contexts_among(self.accepted)

    def repeats(self, *, kept: bool) -> list[str]:
        """Return a sentence if samples have the texts of an earlier sample under another id; each is scored.

        `kept`: whether they can be chosen together.
        """
        in_order = self.accepted.sort("file", "record", maintain_order=True)
        again = in_order.filter(~pl.col("digest").is_first_distinct())
        if again.is_empty():
            return []
        name, digest = again["sample_id"][0], again["digest"][0]
        earlier = in_order.filter(pl.col("digest") == digest)["sample_id"][0]
        share = percentage(again.height / self.accepted.height)
        count = f"{again.height:,} of {plural(self.accepted.height, 'sample')} ({share})"
        repeat = "repeats" if again.height == 1 else "repeat"
        what = "All are scored, and one of each can be chosen: selection.duplicates: keep would allow all"
        if kept:
            what = (
                "All are scored, and may be chosen and trained on together: remove them from the data, or set "
                "selection.duplicates: one"
            )
        return [
            f"long_sft.path: {count} {repeat} the texts of an earlier one under another id (the first: {name} repeats "
            f"{earlier}). {what}"
        ]

    @cached_property
    def beginnings(self) -> list[str]:
        """Return a sentence if conversations begin a longer one, so that it holds their answers, too."""
        count, first, longer, left_out = self.begun
        if not count:
            return []
        what = (
            "They are left out, since the longer one holds their answers: long_sft.turns: each makes a sample of every "
            "answer"
            if left_out
            else "All are scored, and may be chosen and trained on together: remove them from the data, or set "
            "long_sft.turns: last"
        )
        begin = "conversation begins" if count == 1 else "conversations begin"
        return [f"long_sft.path: {count:,} {begin} another one (the first: {first} begins {longer}). {what}."]

    @cached_property
    def instructions(self) -> dict[str, int]:
        """Return, by sample id, the characters of the context that are no part of the document, where there are any.

        With 0 characters, samples whose context is too short to be one.
        """
        size = pl.col("characters") - pl.col("tail_characters")
        short = (size > 0) & (size < SHORTEST_DOCUMENT)
        found = self.accepted.filter((pl.col("instructions") > 0) | short).select("sample_id", "instructions")
        return dict(found.sort("sample_id").iter_rows())

    def shard_digest(self, shard: int) -> str:
        """Return SHA-256 (hex) of what the shard's two tables hold: ids, contents, sources, and reasons of rejects."""
        assert 0 <= shard < self.shards, shard
        return self._shard_digests.get(shard) or text_digest(["raw_long_sft", CODE_VERSION])

    @cached_property
    def _shard_digests(self) -> dict[int, str]:
        # From contents and reasons, not from places in files: packing a file, or another order of its records, leaves
        # the shards of usable records up to date.
        parts: dict[int, list[str]] = {}
        accepted = self.accepted.select("shard", "sample_id", "digest", "source").sort("sample_id")
        for shard, *values in accepted.iter_rows():
            parts.setdefault(shard, []).extend(("+", *values))
        rejected = self.rejected.select("shard", "sample_id", "reason").sort("sample_id", "reason")
        for shard, *values in rejected.iter_rows():
            parts.setdefault(shard, []).extend(("-", *values))
        return {shard: text_digest(["raw_long_sft", CODE_VERSION, *values]) for shard, values in parts.items()}
