"""Score shards with one loaded model, for the tables of one step, and measure the effort of each."""

import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from gateau_dagster.config import Config
from gateau_dagster.execution.pieces import Piece, PieceResult, Texts, compute_piece
from gateau_dagster.execution.shard_tables import ShardResult, TableWork
from gateau_dagster.execution.shard_work import (
    Effort,
    OnTaken,
    ShardProgress,
    Suspects,
    compute_shard,
    read_samples,
    untold,
)
from gateau_dagster.methods.registry import all_sample_tables
from gateau_dagster.models.known_model import visible_tokens
from gateau_dagster.scoring.sample_table import Outcomes, RequestedRow, Running, SampleTable
from gateau_dagster.storage import Store

if TYPE_CHECKING:
    from gateau_dagster.models.flops import ForwardWork
    from gateau_dagster.models.loading import LoadedModel
    from gateau_dagster.models.memory import PeakMemory


@dataclass(frozen=True, kw_only=True)
class ScoringRun:
    """The scoring of one shard's samples with a loaded model, for the tables that one step makes."""

    tables: Sequence[SampleTable]
    loaded: "LoadedModel"
    running: Mapping[str, Running]

    @classmethod
    def start(cls, config: Config, model: str, loaded: "LoadedModel", assets: Sequence[str]) -> "ScoringRun":
        """Return the run for these assets."""
        from gateau_dagster.models.flops import ForwardWork
        from gateau_dagster.models.loading import effective_max_length

        section, scoring = config.models[model], config.scoring
        causal = section.task == "causal"
        length = effective_max_length(loaded, section, scoring) if causal else scoring.max_length
        known = all_sample_tables(config)
        running = {
            asset: Running(
                max_length=length,
                scoring=scoring,
                work=ForwardWork(),
                visible_tokens=visible_tokens(config) if known[asset].needs_visible_window else None,
            )
            for asset in assets
        }
        return cls(tables=[known[asset] for asset in assets], loaded=loaded, running=running)

    @property
    def works(self) -> "Mapping[str, ForwardWork]":
        """Return the tokens and FLOPs of each asset so far."""
        return {asset: running.work for asset, running in self.running.items()}

    def outcomes(self, asked: Iterable[RequestedRow]) -> Generator[Outcomes]:
        """Yield, in order, for each sample a row or a reject for each asset that asks for it."""
        from gateau_dagster.models.cpu_allocator import retained_memory

        with retained_memory(self.loaded.device), closing(self._scored(asked)) as found:  # pyright: ignore[reportArgumentType]
            yield from found

    def _scored(self, asked: Iterable[RequestedRow]) -> Iterator[Outcomes]:
        first = self.tables[0]
        if len(self.tables) > 1:
            assert first.shared is not None
            yield from first.shared.score(self.loaded, asked, self.running)
            return
        samples = (each.sample for each in asked)
        for row in first.score(self.loaded, samples, self.running[first.asset]):
            yield {first.asset: row}


@dataclass(frozen=True, kw_only=True)
class ShardReport:
    """A shard's progress, with the tokens that passed the model and the seconds of scoring."""

    shard: str
    progress: ShardProgress
    tokens: int
    seconds: float


Report = Callable[[ShardReport], None]


class ShardScorer:
    """One model for many shards.

    Args:
        load: returns the model, the same one each time; called for a shard whose samples need it.
    """

    def __init__(self, config: Config, model: str, load: "Callable[[], LoadedModel]") -> None:
        self._config, self._model, self._load = config, model, load

    def compute(
        self,
        store: Store,
        shard: str,
        works: Sequence[TableWork],
        report: Report,
        *,
        on_taken: OnTaken = untold,
        suspects: Suspects | None = None,
    ) -> dict[str, ShardResult]:
        """Compute a shard with `compute_shard`; the stamps get the effort."""
        each = _Measuring(lambda: self._start(works), shard, report)
        return compute_shard(
            store,
            shard,
            works,
            score=each.score,
            on_sample=each.on_sample,
            effort=each.effort,
            on_taken=on_taken,
            suspects=suspects,
        )

    def piece(
        self, store: Store, piece: Piece, report: Report, *, on_taken: OnTaken = untold, texts: Texts = read_samples
    ) -> PieceResult:
        """Score a piece with `compute_piece`; the progress is within the piece."""
        each = _Measuring(lambda: self._start(piece.works), piece.shard, report)
        return compute_piece(
            store,
            piece,
            score=each.score,
            on_sample=each.on_sample,
            effort=each.effort,
            on_taken=on_taken,
            texts=texts,
        )

    def _start(self, works: Sequence[TableWork]) -> "_Measured":
        loaded = self._load()
        run = ScoringRun.start(self._config, self._model, loaded, [work.asset for work in works])
        return _Measured.start(self._config, loaded, run)


class _Measuring:
    """The callbacks of `compute_shard`, with a model that is loaded for the first sample."""

    def __init__(self, start: "Callable[[], _Measured]", shard: str, report: Report) -> None:
        self._start, self._shard, self._report = start, shard, report

    @cached_property
    def _measured(self) -> "_Measured":
        return self._start()

    def score(self, asked: Iterable[RequestedRow]) -> Iterator[Outcomes]:
        return self._measured.score(asked)

    def on_sample(self, progress: ShardProgress) -> None:
        tokens = sum(work.tokens for work in self._measured.run.works.values())
        self._report(ShardReport(shard=self._shard, progress=progress, tokens=tokens, seconds=self._measured.seconds))

    def effort(self) -> Effort:
        return self._measured.effort()


@dataclass(kw_only=True)
class _Measured:
    """The scoring of one shard's samples, with measurements."""

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

    def score(self, asked: Iterable[RequestedRow]) -> Iterator[Outcomes]:
        """Yield the outcomes by asset; the caller's time for saving them does not count as scoring."""
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
        """Return `Stamp.effort` by asset; the seconds of a common pass are divided by FLOPs."""
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
