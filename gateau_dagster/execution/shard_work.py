"""Compute one shard of the scored tables: keep valid rows, compute the others, save progress."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import polars as pl

from gateau_dagster.data.sample import Reject, Sample
from gateau_dagster.execution.shard_tables import ShardResult, ShardTable, TableWork
from gateau_dagster.scoring.sample_table import Outcomes, RequestedRow
from gateau_dagster.storage import Store

Effort = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True, kw_only=True)
class ShardProgress:
    """The progress of a shard: finished samples (kept ones included), scored ones, and the scored share of the text."""

    finished: int
    scored: int
    share: float


@dataclass(frozen=True, kw_only=True)
class Suspects:
    """Samples of a shard over which workers died.

    alone: each is scored by itself, before the others, so that another death identifies the culprit. given_up: they are
    rejected, with these reasons.
    """

    alone: frozenset[str] = frozenset()
    given_up: Mapping[str, str] = field(default_factory=dict)


Score = Callable[[Iterable[RequestedRow]], Iterator[Outcomes]]
OnSample = Callable[[ShardProgress], None]
OnTaken = Callable[[str], None]


def read_samples(store: Store, partition: str) -> pl.DataFrame:
    """Return the shard's validated samples."""
    return store.read("raw_long_sft", partition)


def samples_of(frame: pl.DataFrame) -> Iterator[Sample]:
    """Yield the rows of a `raw_long_sft` table as records."""
    for row in frame.select("sample_id", "source", "context", "instruction", "response").iter_rows(named=True):
        yield Sample(**row)


def has_missing_rows(store: Store, partition: str, works: Sequence[TableWork]) -> bool:
    """Return whether a model is needed to bring the shard's tables up to date; texts are not read."""
    samples = store.read("raw_long_sft", partition, ["sample_id", "digest"])
    return any(ShardTable.open(store, partition, work, samples).missing for work in works)


def no_effort() -> Effort:
    """Return no effort, for work that is not measured."""
    return {}


def untold(sample_id: str) -> None:
    """Ignore the begun sample."""
    del sample_id


def compute_shard(
    store: Store,
    partition: str,
    works: Sequence[TableWork],
    *,
    score: Score,
    on_sample: OnSample,
    effort: Callable[[], Effort] = no_effort,
    on_taken: OnTaken = untold,
    suspects: Suspects | None = None,
) -> dict[str, ShardResult]:
    """Bring one shard of one or several tables up to date; return the results by asset.

    A sample whose row several tables need is scored once for all of them. However the work ends, the rows of unwritten
    tables are saved.

    Args:
        store: of the project.
        partition: the shard.
        works: the work on each table.
        score: yields, in order, for each sample one row or one reject for each asset that asks for it; called only if
            there is work; more than once if there are suspects.
        on_sample: called after each sample.
        effort: returns the effort of scoring by asset; called once, after all samples.
        on_taken: called with each sample's id before `score` gets it; maybe in a thread.
        suspects: samples to handle apart from the others.

    Raises:
        GateauError: reading or writing the store failed.
    """
    samples = read_samples(store, partition)
    found = [ShardTable.open(store, partition, work, samples) for work in works]
    results: dict[str, ShardResult] = {}
    with ExitStack() as ending:
        for table in found:
            ending.callback(_save_unless_written, table, results)
        scored = score_missing(samples, found, ScoringCallbacks(score, on_sample, on_taken, suspects or Suspects()))
        measured = effort() if scored else {}
        for table in found:
            asset = table.work.asset
            results[asset] = table.write(store, partition, measured.get(asset, {}) if table.missing else {})
    return results


def _save_unless_written(table: ShardTable, results: Mapping[str, ShardResult]) -> None:
    if table.work.asset not in results:
        table.partial.close()


@dataclass(frozen=True)
class ScoringCallbacks:
    """The callbacks and suspects of `compute_shard`."""

    score: Score
    on_sample: OnSample
    on_taken: OnTaken
    suspects: Suspects = field(default_factory=Suspects)

    def outcomes(self, missing: pl.DataFrame, found: Sequence[ShardTable]) -> Iterator[tuple[Outcomes, str]]:
        """Yield the outcomes and the sample's id for each of `missing`."""
        alone = pl.col("sample_id").is_in(list(self.suspects.alone))
        for group in (*missing.filter(alone).iter_slices(1), missing.filter(~alone)):
            ids = group["sample_id"].to_list()
            if ids:
                yield from zip(self.score(self._taken(_asked(group, found))), ids, strict=False)  # see ShardTable.write

    def _taken(self, asked: Iterator[RequestedRow]) -> Iterator[RequestedRow]:
        for each in asked:
            self.on_taken(each.sample.sample_id)
            yield each


def score_missing(samples: pl.DataFrame, found: Sequence[ShardTable], scoring: ScoringCallbacks) -> int:
    """Score the samples without a row in some table, one by one; return their number. See `compute_shard`."""
    for table in found:
        table.rejects += _given_up(table.missing, scoring.suspects)
    wanted: frozenset[str] = frozenset().union(*(table.missing for table in found)) - scoring.suspects.given_up.keys()
    missing = samples.filter(pl.col("sample_id").is_in(list(wanted)))
    if missing.is_empty():
        return 0
    sizes = dict(zip(missing["sample_id"], _sizes(missing), strict=True))
    total, done, kept = sum(sizes.values()), 0, samples.height - missing.height
    for number, (given, sample_id) in enumerate(scoring.outcomes(missing, found), start=1):
        for table in found:
            if table.work.asset in given:
                table.add(given[table.work.asset])
        done += sizes[sample_id]
        scoring.on_sample(ShardProgress(finished=kept + number, scored=number, share=done / total))
    return missing.height


def _given_up(missing: frozenset[str], suspects: Suspects) -> list[Reject]:
    return [
        Reject(sample_id=sample_id, reason=reason, short_of_memory=True)
        for sample_id, reason in suspects.given_up.items()
        if sample_id in missing
    ]


def _sizes(samples: pl.DataFrame) -> list[int]:
    """Return the bytes of each sample's text, at least one, which scoring time is roughly proportional to."""
    texts = ("context", "instruction", "response")
    return samples.select(1 + sum((pl.col(text).str.len_bytes() for text in texts), pl.lit(0))).to_series().to_list()


def _asked(missing: pl.DataFrame, found: Sequence[ShardTable]) -> Iterator[RequestedRow]:
    for sample in samples_of(missing):
        assets = frozenset(table.work.asset for table in found if sample.sample_id in table.missing)
        yield RequestedRow(sample=sample, assets=assets)
