"""A shard of samples in a store, and scorers that note what they are given."""

from collections.abc import Callable, Iterable, Iterator

import polars as pl

from gateau_dagster import tables
from gateau_dagster.data.sample import Reject, Sample
from gateau_dagster.execution.shard_tables import ShardResult, TableWork
from gateau_dagster.execution.shard_work import OnSample, Outcomes, RequestedRow, Score, compute_shard
from gateau_dagster.storage import Stamp, Store

ASSET, SHARD = "perplexity/short", "1"


def write_samples(store: Store, *numbers: int, edited: int | None = None) -> None:
    rows = []
    for number in numbers:
        text = "edited" if number == edited else f"context {number}"
        sample = Sample(sample_id=f"s{number}", source="x", context=text, instruction="i", response="r")
        rows.append(
            {
                **{
                    name: getattr(sample, name)
                    for name in ("sample_id", "source", "context", "instruction", "response")
                },
                "digest": sample.digest,
            }
        )
    frame = pl.DataFrame(rows, schema=tables.schema(tables.RAW_LONG_SFT), orient="row")
    store.write(frame, "raw_long_sft", SHARD, Stamp(fingerprint="raw"))


class Scorer:
    """Notes which samples it was given; fails at one, rejects another."""

    def __init__(self, *, version: float = 1.0, fail_at: str = "", reject: str = "") -> None:
        self.version, self.fail_at, self.reject = version, fail_at, reject
        self.scored: list[str] = []

    def __call__(self, samples: Iterable[Sample]) -> Iterator[dict[str, object] | Reject]:
        for sample in samples:
            if sample.sample_id == self.fail_at:
                raise RuntimeError("killed in the middle")
            self.scored.append(sample.sample_id)
            if sample.sample_id == self.reject:
                yield Reject(sample_id=sample.sample_id, reason="too long")
                continue
            yield {
                "sample_id": sample.sample_id,
                "digest": sample.digest,
                "perplexity": self.version + len(sample.context),
                "mean_nll": 0.0,
                "context_tokens": 1,
                "response_tokens": 1,
                "truncated_tokens": 0,
            }


SampleScore = Callable[[Iterable[Sample]], Iterator[dict[str, object] | Reject]]


def for_one_table(score: SampleScore) -> Score:
    """A scorer of ASSET as compute_shard wants it."""

    def by_asset(asked: Iterable[RequestedRow]) -> Iterator[Outcomes]:
        return ({ASSET: outcome} for outcome in score(one.sample for one in asked))

    return by_asset


def compute(
    store: Store,
    scorer: SampleScore,
    name: str = "v1",
    *,
    seen: list[int] | None = None,
    memory: str = "m",
    on_sample: OnSample | None = None,
) -> ShardResult:
    stamp = Stamp(fingerprint=f"f {name}", scorer=name)
    work = TableWork(asset=ASSET, columns=tables.PERPLEXITY, stamp=stamp, memory=memory)
    finished = seen if seen is not None else []
    on_sample = on_sample or (lambda progress: finished.append(progress.finished))
    return compute_shard(store, SHARD, [work], score=for_one_table(scorer), on_sample=on_sample)[ASSET]
