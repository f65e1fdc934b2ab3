"""How much work a plan is: tokens from the texts' lengths, FLOPs from the models' shapes, time from a calibration."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import polars as pl

from gateau_dagster.estimate.outstanding_samples import outstanding_samples
from gateau_dagster.estimate.scored_model import ScoredModel
from gateau_dagster.methods.registry import sample_tables
from gateau_dagster.pipeline.plan import Plan
from gateau_dagster.pipeline.state import State
from gateau_dagster.scoring.planned_work import (
    Numbers,
    PlannedWork,
    observed_rows,
    segment_passes,
    whole_prompts,
)

if TYPE_CHECKING:
    from gateau_dagster.config import ScoringConfig
    from gateau_dagster.estimate.calibration import Speed
    from gateau_dagster.models.flops import ModelShape

_LONG, _CAM = "perplexity/long", "cam"


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """Samples to score, tokens through the model, FLOPs and seconds (None: unknown)."""

    samples: int
    tokens: int | None
    flops: float | None
    seconds: float | None


@dataclass(frozen=True, kw_only=True)
class _Cost:
    """Of each sample: tokens, FLOPs and seconds of the model, None what is unknown; seconds of tokenising on a core."""

    tokens: Numbers
    flops: Numbers | None
    seconds: Numbers | None
    tokenising: Numbers


class Estimator:
    """Estimates on a state; what it finds out about a model serves all of them."""

    def __init__(self, state: State) -> None:
        self.state = state
        self.tables = sample_tables(state.config)
        self.models: dict[str, ScoredModel] = {}
        self.unestimated: list[str] = []  # tables asked for whose methods do not say what they take

    def shards(self, wanted: Mapping[str, Sequence[str]]) -> dict[tuple[str, str], Estimate]:
        """Estimates by asset and shard, each for the process that scores it beside the others."""
        slower, cores = self._processes(wanted)[1], cores_taken(self.state.config.scoring)
        pending = {asset: outstanding_samples(self.state, asset, shards) for asset, shards in wanted.items()}
        common = pending[_LONG]["sample_id"] if _LONG in pending else pl.Series([], dtype=pl.String)
        found: dict[tuple[str, str], Estimate] = {}
        for asset, samples in pending.items():
            cost = self._cost(asset, samples, samples["sample_id"].is_in(common.implode()).to_numpy())
            for shard in wanted[asset]:
                chosen = (samples["shard"] == int(shard)).to_numpy()
                found[asset, shard] = _sum(cost, chosen, slower, cores)
        for shard in {*wanted.get(_LONG, ())} & {*wanted.get(_CAM, ())}:
            found |= _as_measured({key: found[key] for key in ((_LONG, shard), (_CAM, shard))})
        return found

    def assets(self, wanted: Mapping[str, Sequence[str]]) -> dict[str, Estimate]:
        """Estimates by asset, the time divided among the processes that score side by side."""
        each, workers = self.shards(wanted), self._processes(wanted)[0]
        found = {}
        for asset, shards in wanted.items():
            parts = [each[asset, shard] for shard in shards]
            seconds = _total([part.seconds for part in parts])
            found[asset] = Estimate(
                samples=sum(part.samples for part in parts),
                tokens=None if any(part.tokens is None for part in parts) else sum(part.tokens or 0 for part in parts),
                flops=_total([part.flops for part in parts]),
                seconds=None if seconds is None else seconds / workers,
            )
        return found

    def model(self, asset: str) -> ScoredModel:
        """The model that scores an asset."""
        own = self.tables.get(asset)
        name = own.model if own is not None else "long" if asset == _CAM else asset.removeprefix("perplexity/")
        return self.models.setdefault(name, ScoredModel(self.state, name))

    def _processes(self, wanted: Mapping[str, Sequence[str]]) -> tuple[int, float]:
        """How many processes score side by side, and how much slower each is than one alone."""
        workers, room = processes(self.state.config.scoring)
        workers = max(1, min(workers, max(map(len, wanted.values()), default=1)))
        return workers, max(1.0, workers / room)

    def _cost(self, asset: str, samples: pl.DataFrame, shared: npt.NDArray[np.bool_]) -> _Cost | None:
        """`shared`: samples whose full pass of theta_B is counted for its perplexity. None: the method does not say."""
        model, planned = self.model(asset), self._planned(asset, samples, shared)
        if planned is None:
            self.unestimated.append(asset)
            return None
        texts = samples["characters" if planned.reads_context else "tail_characters"].to_numpy()
        tokenising = texts * model.rates.seconds * (~shared if asset == _CAM else 1.0)
        flops = model.flops(planned)
        if model.shape is None or flops is None:
            return _Cost(tokens=planned.tokens, flops=flops, seconds=None, tokenising=tokenising)
        seconds: Numbers | None = np.zeros(samples.height)
        if samples.height:
            speed = model.speed
            seconds = None if isinstance(speed, str) else _seconds(planned, model.shape, speed)
        return _Cost(tokens=planned.tokens, flops=flops, seconds=seconds, tokenising=tokenising)

    def _planned(self, asset: str, samples: pl.DataFrame, shared: npt.NDArray[np.bool_]) -> PlannedWork | None:
        """The passes of each sample."""
        tokens = self.model(asset).sample_tokens(samples)
        if asset in self.tables:
            effort = self.tables[asset].effort
            return None if effort is None else effort(tokens)
        parts = tokens.prompts(opening=True)
        scored = parts.prompt > 0
        if asset != _CAM:
            return PlannedWork(passes=[whole_prompts(parts, count=scored.astype(np.float64), head=True)])
        has_context = parts.context > 0
        own = whole_prompts(parts, count=(~shared & has_context).astype(np.float64), head=False)
        # Without context, the pass of the perplexity is the one without context, too.
        alone = (scored & (has_context | ~shared)).astype(np.float64)
        length = self.state.config.scoring.segment_length
        segments = segment_passes(parts, segment_length=length, alone=alone)
        return PlannedWork(passes=[own, *segments], rows=[observed_rows(parts)])


def estimate(state: State, plan: Plan) -> dict[str, Estimate]:
    """Estimates of the assets that a model scores; those that keep their rows count nothing."""
    return Estimator(state).assets(scored_work(state, plan))


def estimate_shards(state: State, wanted: Mapping[str, Sequence[str]]) -> dict[tuple[str, str], Estimate]:
    """Estimates by (asset, shard), each as the process takes that scores it; `wanted` names the shards of each asset.

    `cam` and `perplexity/long` asked for together share the pass of theta_B, which counts for the perplexity.
    """
    return Estimator(state).shards(wanted)


def scored_work(state: State, plan: Plan) -> dict[str, list[str]]:
    """The shards of each asset of the plan that a model scores."""
    own = {_CAM, *sample_tables(state.config)}
    scored = [work for work in plan.work if work.asset in own or work.asset.startswith("perplexity/")]
    return {work.asset: work.partitions for work in scored}


def processes(scoring: ScoringConfig) -> tuple[int, int]:
    """How many processes score, and for how many of them there is a device, or a core for each of their threads."""
    import torch

    from gateau_dagster.models.devices import worker_devices

    devices = worker_devices(scoring, scoring.device)
    if devices[0].startswith("cuda") or (scoring.device == "auto" and torch.cuda.is_available()):
        return len(devices), len({*devices})
    return len(devices), max(1, (os.cpu_count() or 1) // torch.get_num_threads())


def cores_taken(scoring: ScoringConfig) -> int:
    """Cores that one process computes on; 0 when it has a GPU for that."""
    import torch

    from gateau_dagster.models.loading import resolve_device

    return 0 if resolve_device(scoring.device).type == "cuda" else torch.get_num_threads()


def _seconds(planned: PlannedWork, shape: ModelShape, speed: Speed) -> Numbers:
    """Of the model, for each sample; a speed that knows none of packed rows takes them as full prompts."""
    total = np.sum([one.flops(shape) * speed.rows for one in planned.rows] or [0.0], axis=0)
    for one in planned.passes:
        linear, attention = one.linear(shape), one.attention(shape)
        if one.packed and speed.segments:
            total = total + (linear + attention) * speed.segments
        else:
            total = total + one.count * speed.overhead + linear * speed.linear + attention * speed.attention
        total = total + one.output(shape) * speed.head
    return np.asarray(total)


def _as_measured(pair: dict[tuple[str, str], Estimate]) -> dict[tuple[str, str], Estimate]:
    """The seconds that two tables take together, split as the measured ones are: by FLOPs."""
    seconds, flops = (_total([getattr(each, name) for each in pair.values()]) for name in ("seconds", "flops"))
    if seconds is None or not flops:
        return pair
    return {key: replace(each, seconds=seconds * (each.flops or 0.0) / flops) for key, each in pair.items()}


def _sum(cost: _Cost | None, chosen: npt.NDArray[np.bool_], slower: float, cores: int) -> Estimate:
    """`cores`: that the model computes on, and takes from the tokenising beside it; 0: a device of its own."""
    if cost is None:
        return Estimate(samples=int(chosen.sum()), tokens=None, flops=None, seconds=None)
    seconds = None if cost.seconds is None else float(cost.seconds[chosen].sum())
    if seconds is not None:
        tokenising = float(cost.tokenising[chosen].sum())
        seconds = slower * (seconds + tokenising / cores if cores else max(seconds, tokenising))
    return Estimate(
        samples=int(chosen.sum()),
        tokens=round(float(cost.tokens[chosen].sum())),
        flops=None if cost.flops is None else float(cost.flops[chosen].sum()),
        seconds=seconds,
    )


def _total(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if len(known) == len(values) else None
