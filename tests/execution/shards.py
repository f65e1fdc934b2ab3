"""A shard of samples in a store, and scorers without a model."""

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import polars as pl

from gateau_dagster import tables
from gateau_dagster.data.sample import Reject, Sample
from gateau_dagster.execution.shard_scorer import Report, ShardReport, ShardScorer
from gateau_dagster.execution.shard_tables import Effort, Piece, PieceResult, ShardResult, TableWork
from gateau_dagster.scoring.sample_table import Outcomes, RequestedRow
from gateau_dagster.storage import Stamp, Store

ASSET, SHARD, CAM = "perplexity/short", "1", "cam"
COLUMNS = {ASSET: tables.PERPLEXITY, CAM: tables.CAM}
BOTH, SCORER = (ASSET, CAM), "v1"


def write_samples(store: Store, *numbers: int, edited: int | None = None) -> None:
    rows = []
    for number in numbers:
        text = "edited" if number == edited else f"context {number}"
        sample = Sample(sample_id=f"s{number}", source="x", context=text, instruction="i", response="r")
        rows.append(asdict(sample) | {"digest": sample.digest})
    frame = pl.DataFrame(rows, schema=tables.schema(tables.RAW_LONG_SFT), orient="row")
    store.write(frame, "raw_long_sft", SHARD, Stamp(fingerprint="raw"))


def work(asset: str = ASSET, version: str = SCORER, **further: Any) -> TableWork:
    stamp = Stamp(fingerprint=f"f {version}", scorer=version if asset == ASSET else f"{version} of {asset}")
    return TableWork(**{"asset": asset, "columns": COLUMNS[asset], "stamp": stamp, "memory": "m"} | further)


def ignore(report: ShardReport) -> None:
    del report


class ScorerWithoutModel(ShardScorer):
    """Scores by a function from requests to outcomes."""

    def __init__(
        self,
        score: Callable[[Iterable[RequestedRow]], Iterator[Outcomes]],
        report: Report = ignore,
        begin: Callable[[str], object] = str,
        effort: Effort | None = None,
    ) -> None:
        nothing: Any = None
        super().__init__(nothing, {}, "", nothing, report, begin)
        self._score, self._given = score, effort or {}

    def _prepare(self, works: Sequence[TableWork]) -> None:
        del works

    def _outcomes(self, requests: Iterator[RequestedRow]) -> Generator[Outcomes]:
        yield from self._score(requests)

    @property
    def _tokens(self) -> int:
        return 0

    def _effort(self, samples: Mapping[str, int], seconds: float) -> Effort:
        return {asset: found for asset, found in self._given.items() if samples[asset]}


class Scorer:
    """Notes which samples it was given, for which assets; fails at one, rejects another one of an asset."""

    def __init__(
        self, *, version: float = 1.0, fail_at: str = "", reject: str = "", of: str = "", short_of_memory: bool = False
    ) -> None:
        self.version, self._fail_at, self._reject, self._of = version, fail_at, reject, of
        self._short_of_memory = short_of_memory
        self.asked: list[tuple[str, frozenset[str]]] = []

    @property
    def scored(self) -> list[str]:
        return [sample_id for sample_id, _ in self.asked]

    def __call__(self, requests: Iterable[RequestedRow]) -> Iterator[Outcomes]:
        for each in requests:
            if each.sample.sample_id == self._fail_at:
                raise RuntimeError("killed in the middle")
            self.asked.append((each.sample.sample_id, each.assets))
            yield {asset: self._outcome(asset, each.sample) for asset in each.assets}

    def _outcome(self, asset: str, sample: Sample) -> dict[str, Any] | Reject:
        if sample.sample_id == self._reject and self._of in {"", asset}:
            return Reject(sample_id=sample.sample_id, reason="too long", short_of_memory=self._short_of_memory)
        ids: dict[str, Any] = {"sample_id": sample.sample_id, "digest": sample.digest}
        if asset == CAM:
            return ids | {"segments": 1, "segment_perplexity": [2.0], "segment_attention": [0.5], "cas": None}
        counts = dict.fromkeys(("context_tokens", "response_tokens", "truncated_tokens"), 1)
        return ids | counts | {"perplexity": self.version + len(sample.context), "mean_nll": 0.0}


def score(store: Store, piece: Piece, scorer: Scorer | None = None, **effort: Any) -> PieceResult:
    """The result of a piece."""
    given = {ASSET: effort} if effort else {}
    return ScorerWithoutModel(scorer or Scorer(), effort=given).score(store, piece)


def compute(
    store: Store,
    scorer: Callable[[Iterable[RequestedRow]], Iterator[Outcomes]],
    *assets: str,
    works: Sequence[TableWork] = (),
    report: Report = ignore,
    **further: Any,
) -> dict[str, ShardResult]:
    """What the whole shard becomes, in one piece."""
    shard = Piece.whole(store, SHARD, works or [work(asset) for asset in assets])
    return ScorerWithoutModel(scorer, report, **further).shard(store, shard)


def compute_one(
    store: Store, scorer: Scorer, version: str = SCORER, *, report: Report = ignore, **further: Any
) -> ShardResult:
    """What the shard becomes in the table ASSET."""
    return compute(store, scorer, works=[work(version=version, **further)], report=report)[ASSET]
