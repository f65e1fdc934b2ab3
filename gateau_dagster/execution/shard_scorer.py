"""Scores shards with one loaded model, for the tables that one step makes, and measures what each of them takes."""

import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from gateau_dagster.config import Config
from gateau_dagster.data.sample import Reject
from gateau_dagster.execution.shard_work import (
    Asked,
    Effort,
    Outcomes,
    Row,
    ShardProgress,
    ShardResult,
    TableWork,
    compute_shard,
)
from gateau_dagster.methods.registry import sample_tables
from gateau_dagster.models.visible_window import visible_tokens
from gateau_dagster.scoring.sample_table import Running, SampleTable
from gateau_dagster.storage import Store

if TYPE_CHECKING:
    from gateau_dagster.models.flops import Meter, Work
    from gateau_dagster.models.loading import LoadedModel
    from gateau_dagster.models.memory import PeakMemory
    from gateau_dagster.scoring.scorer import Outcome, Request


CAM = "cam"


class ScoringRun(Protocol):
    """The scoring of one shard's samples with a loaded model."""

    @property
    def works(self) -> "Mapping[str, Work]":
        """The tokens and FLOPs of each asset so far."""
        ...

    def outcomes(self, asked: Iterable[Asked]) -> Generator[Outcomes]:
        """In order, for each sample a row or a reject for each asset that asks for it."""
        ...


def start_run(config: Config, model: str, loaded: "LoadedModel", assets: Sequence[str]) -> ScoringRun:
    """What computes these assets, which one step makes with one model."""
    from gateau_dagster.models.flops import Meter, Work
    from gateau_dagster.models.loading import effective_max_length

    table = sample_tables(config).get(assets[0])
    causal = config.models[model].task == "causal"
    length = effective_max_length(loaded, config.models[model], config.scoring) if causal else config.scoring.max_length
    if table is None:
        return PairRun(config=config, model=model, loaded=loaded, length=length, meter=Meter(), cam=CAM in assets)
    assert len(assets) == 1
    sight = visible_tokens(config) if table.needs_visible_window else None
    running = Running(max_length=length, scoring=config.scoring, work=Work(), sight=sight)
    return TableRun(table=table, loaded=loaded, running=running)


@dataclass(frozen=True, kw_only=True)
class PairRun:
    """`perplexity/<model>` and `cam`; one pass serves both."""

    config: Config
    model: str
    loaded: "LoadedModel"
    length: int
    meter: "Meter"
    cam: bool

    @property
    def works(self) -> "Mapping[str, Work]":
        """See ScoringRun."""
        return {f"perplexity/{self.model}": self.meter.perplexity, CAM: self.meter.cam}

    def outcomes(self, asked: Iterable[Asked]) -> Generator[Outcomes]:
        """See ScoringRun."""
        from gateau_dagster.scoring.scorer import score_samples

        scoring, requests = self.config.scoring, map(_request, asked)
        sight = visible_tokens(self.config) if self.cam else None
        found = score_samples(
            self.loaded, requests, max_length=self.length, scoring=scoring, meter=self.meter, sight=sight
        )
        with closing(found):  # pyright: ignore[reportArgumentType]
            for outcome in found:
                yield _by_asset(outcome, f"perplexity/{self.model}")


@dataclass(frozen=True, kw_only=True)
class TableRun:
    """A table of a method."""

    table: SampleTable
    loaded: "LoadedModel"
    running: Running

    @property
    def works(self) -> "Mapping[str, Work]":
        """See ScoringRun."""
        return {self.table.asset: self.running.work}

    def outcomes(self, asked: Iterable[Asked]) -> Generator[Outcomes]:
        """See ScoringRun."""
        from gateau_dagster.models.cpu_allocator import reused_memory

        with reused_memory(self.loaded.device):
            for row in self.table.score(self.loaded, (each.sample for each in asked), self.running):
                yield {self.table.asset: row}


def _request(asked: Asked) -> "Request":
    from gateau_dagster.scoring.scorer import Request

    perplexity = any(asset != CAM for asset in asked.assets)
    return Request(sample=asked.sample, perplexity=perplexity, cam=CAM in asked.assets)


def _by_asset(outcome: "Outcome", perplexity: str) -> Mapping[str, Row | Reject]:
    given = {perplexity: outcome.perplexity, CAM: outcome.cam}
    return {asset: one if isinstance(one, Reject) else asdict(one) for asset, one in given.items() if one is not None}


@dataclass(frozen=True, kw_only=True)
class ShardReport:
    """A shard's progress, with the tokens that went through the model for it and the seconds that scoring took."""

    shard: str
    progress: ShardProgress
    tokens: int
    seconds: float


Report = Callable[[ShardReport], None]


class ShardScorer:
    """One model for many shards.

    Args:
        load: gives the model, the same one each time; asked for a shard whose samples need it.
    """

    def __init__(self, config: Config, model: str, load: "Callable[[], LoadedModel]") -> None:
        self._config, self._model, self._load = config, model, load

    def compute(self, store: Store, shard: str, works: Sequence[TableWork], report: Report) -> dict[str, ShardResult]:
        """See `compute_shard`; the stamps get the effort."""
        measured: list[_Measured] = []

        def score(asked: Iterable[Asked]) -> Iterator[Outcomes]:
            loaded = self._load()
            run = start_run(self._config, self._model, loaded, [work.asset for work in works])
            measured.append(_Measured.start(self._config, loaded, run))
            return measured[0].score(asked)

        def on_sample(progress: ShardProgress) -> None:
            tokens = sum(work.tokens for work in measured[0].run.works.values())
            report(ShardReport(shard=shard, progress=progress, tokens=tokens, seconds=measured[0].seconds))

        def effort() -> Effort:
            return measured[0].effort()

        return compute_shard(store, shard, works, score=score, on_sample=on_sample, effort=effort)


@dataclass(kw_only=True)
class _Measured:
    """The scoring of one shard's samples while it is measured."""

    config: Config
    loaded: "LoadedModel"
    run: ScoringRun
    memory: "PeakMemory"
    seconds: float = 0.0
    samples: dict[str, int] = field(default_factory=dict)

    @classmethod
    def start(cls, config: Config, loaded: "LoadedModel", run: ScoringRun) -> "_Measured":
        from gateau_dagster.models.memory import PeakMemory

        return cls(config=config, loaded=loaded, run=run, memory=PeakMemory(loaded.device))

    def score(self, asked: Iterable[Asked]) -> Iterator[Outcomes]:
        """The outcomes by asset. The time that the caller spends on saving them is not scoring."""
        with closing(self.run.outcomes(asked)) as outcomes:
            while True:
                started = time.perf_counter()
                found = next(outcomes, None)
                self.seconds += time.perf_counter() - started
                if found is None:
                    return
                for asset in found:
                    self.samples[asset] = self.samples.get(asset, 0) + 1
                yield found

    def effort(self) -> dict[str, dict[str, Any]]:
        """By asset, `Stamp.effort`; the seconds of a common pass are split as the FLOPs are."""
        from gateau_dagster.models.devices import matrix_product_speed

        peak = self.memory.read()
        works = self.run.works
        total = sum(works[asset].flops for asset in self.samples)
        common = {
            "peak_memory": peak,
            "peak_memory_since_start": self.memory.since_start,
            "device": str(self.loaded.device),
            "matrix_product_speed": matrix_product_speed(str(self.loaded.device), self.config.scoring.dtype),
        }
        found: dict[str, dict[str, Any]] = {}
        for asset, samples in self.samples.items():
            work = works[asset]
            share = work.flops / total if total else 1 / len(self.samples)
            seconds = self.seconds * share
            found[asset] = {
                "samples": samples,
                "tokens": work.tokens,
                "flops": work.flops,
                "seconds": seconds,
                **common,
            }
        return found
