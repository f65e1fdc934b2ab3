"""Scores shards with one loaded model, and measures what each of them takes."""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any

from gateau_dagster.config import Config
from gateau_dagster.data.sample import Reject
from gateau_dagster.incremental.shard_work import (
    Asked,
    Effort,
    Outcomes,
    Row,
    ShardProgress,
    ShardResult,
    TableWork,
    compute_shard,
)
from gateau_dagster.storage import Store

if TYPE_CHECKING:
    from gateau_dagster.scoring.effort import Meter
    from gateau_dagster.scoring.loading import LoadedModel
    from gateau_dagster.scoring.peak_memory import PeakMemory
    from gateau_dagster.scoring.scorer import Outcome, Request

CAM = "cam"


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
            measured.append(_Measured.start(self._config, self._model, self._load()))
            return measured[0].score(asked)

        def on_sample(progress: ShardProgress) -> None:
            work = measured[0]
            tokens = work.meter.perplexity.tokens + work.meter.cam.tokens
            report(ShardReport(shard=shard, progress=progress, tokens=tokens, seconds=work.seconds))

        def effort() -> Effort:
            return measured[0].effort()

        return compute_shard(store, shard, works, score=score, on_sample=on_sample, effort=effort)


@dataclass(kw_only=True)
class _Measured:
    """The scoring of one shard's samples while it is measured."""

    config: Config
    model: str
    loaded: "LoadedModel"
    meter: "Meter"
    memory: "PeakMemory"
    seconds: float = 0.0
    samples: dict[str, int] = field(default_factory=dict)

    @classmethod
    def start(cls, config: Config, model: str, loaded: "LoadedModel") -> "_Measured":
        from gateau_dagster.scoring.effort import Meter
        from gateau_dagster.scoring.peak_memory import PeakMemory

        return cls(config=config, model=model, loaded=loaded, meter=Meter(), memory=PeakMemory(loaded.device))

    def score(self, asked: Iterable[Asked]) -> Iterator[Outcomes]:
        """The outcomes by asset. The time that the caller spends on saving them is not scoring."""
        from gateau_dagster.scoring.loading import effective_max_length
        from gateau_dagster.scoring.scorer import score_samples

        model, scoring = self.config.models[self.model], self.config.scoring
        length = effective_max_length(self.loaded, model, scoring)
        requests = map(_request, asked)
        outcomes = score_samples(self.loaded, requests, max_length=length, scoring=scoring, meter=self.meter)
        with closing(outcomes):  # pyright: ignore[reportArgumentType]
            while True:
                started = time.perf_counter()
                outcome = next(outcomes, None)
                self.seconds += time.perf_counter() - started
                if outcome is None:
                    return
                found = _by_asset(outcome, f"perplexity/{self.model}")
                for asset in found:
                    self.samples[asset] = self.samples.get(asset, 0) + 1
                yield found

    def effort(self) -> dict[str, dict[str, Any]]:
        """By asset, `Stamp.effort`; the seconds of a common pass are split as the FLOPs are."""
        peak = self.memory.read()
        works = {f"perplexity/{self.model}": self.meter.perplexity, CAM: self.meter.cam}
        total = sum(works[asset].flops for asset in self.samples)
        common = {
            "peak_memory": peak,
            "peak_memory_since_start": self.memory.since_start,
            "device": str(self.loaded.device),
            "matrix_product_speed": _speed(str(self.loaded.device), self.config.scoring.dtype),
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


@cache
def _speed(device: str, dtype: str) -> float | None:
    """FLOP/s of a matrix product, measured once a process; None where the model leaves no room for one."""
    from gateau_dagster.incremental.calibration import matrix_product_speed
    from gateau_dagster.scoring.memory import is_out_of_memory

    try:
        return matrix_product_speed(device, dtype)
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        return None


def _request(asked: Asked) -> "Request":
    from gateau_dagster.scoring.scorer import Request

    perplexity = any(asset != CAM for asset in asked.assets)
    return Request(sample=asked.sample, perplexity=perplexity, cam=CAM in asked.assets)


def _by_asset(outcome: "Outcome", perplexity: str) -> Mapping[str, Row | Reject]:
    given = {perplexity: outcome.perplexity, CAM: outcome.cam}
    return {asset: one if isinstance(one, Reject) else asdict(one) for asset, one in given.items() if one is not None}
