"""How much work a plan is: tokens from the texts' lengths, FLOPs from the models' shapes, time from a calibration."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import polars as pl

from gateau_dagster.incremental.pending import PromptTokens, pending_samples
from gateau_dagster.incremental.plan import Plan
from gateau_dagster.incremental.scored_model import ScoredModel
from gateau_dagster.incremental.state import State

if TYPE_CHECKING:
    from gateau_dagster.config import ScoringConfig
    from gateau_dagster.incremental.calibration import Speed
    from gateau_dagster.scoring.effort import ModelShape

_LONG, _CAM = "perplexity/long", "cam"
Numbers = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """Samples to score, tokens through the model, FLOPs and seconds (None: unknown)."""

    samples: int
    tokens: int
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
        self.models: dict[str, ScoredModel] = {}

    def shards(self, wanted: Mapping[str, Sequence[str]]) -> dict[tuple[str, str], Estimate]:
        """Estimates by asset and shard, each for the process that scores it beside the others."""
        slower, cores = self._processes(wanted)[1], cores_taken(self.state.config.scoring)
        pending = {asset: pending_samples(self.state, asset, shards) for asset, shards in wanted.items()}
        common = pending[_LONG]["sample_id"] if _LONG in pending else pl.Series([], dtype=pl.String)
        found: dict[tuple[str, str], Estimate] = {}
        for asset, samples in pending.items():
            cost = self._cost(asset, samples, samples["sample_id"].is_in(common.implode()).to_numpy())
            for shard in wanted[asset]:
                found[asset, shard] = _sum(cost, (samples["shard"] == int(shard)).to_numpy(), slower, cores)
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
                tokens=sum(part.tokens for part in parts),
                flops=_total([part.flops for part in parts]),
                seconds=None if seconds is None else seconds / workers,
            )
        return found

    def model(self, asset: str) -> ScoredModel:
        """The model that scores an asset."""
        name = "long" if asset == _CAM else asset.removeprefix("perplexity/")
        return self.models.setdefault(name, ScoredModel(self.state, name))

    def _processes(self, wanted: Mapping[str, Sequence[str]]) -> tuple[int, float]:
        """How many processes score side by side, and how much slower each is than one alone."""
        workers, room = processes(self.state.config.scoring)
        workers = max(1, min(workers, max(map(len, wanted.values()), default=1)))
        return workers, max(1.0, workers / room)

    def _cost(self, asset: str, samples: pl.DataFrame, shared: npt.NDArray[np.bool_]) -> _Cost:
        """`shared`: samples whose full pass of theta_B is counted for its perplexity."""
        model = self.model(asset)
        tokens = model.tokens(samples)
        own_pass = np.ones(samples.height) if asset != _CAM else (~shared & (tokens.segments > 0)).astype(np.float64)
        # Without context, the pass of the perplexity is the one without context, too.
        alone = ((tokens.prompt > 0) & ((tokens.segments > 0) | ~shared)).astype(np.float64)
        count = own_pass * tokens.prompt
        count += tokens.segment_tokens + alone * tokens.tail if asset == _CAM else 0.0
        shape = model.shape
        tokenising = tokens.seconds * (~shared if asset == _CAM else 1.0)
        if shape is None:
            return _Cost(tokens=count, flops=None, seconds=None, tokenising=tokenising)
        flops, seconds = np.zeros(samples.height), np.zeros(samples.height)
        speed = model.speed if samples.height else "there is nothing to score"
        parts = [_full_pass(shape, tokens, own_pass, head=asset != _CAM)]
        parts += [_segments(shape, tokens, alone), _rows(shape, tokens)] if asset == _CAM else []
        for part in parts:
            flops += part.flops
            seconds += 0.0 if isinstance(speed, str) else part.seconds(speed)
        known = None if isinstance(speed, str) and samples.height else seconds
        return _Cost(tokens=count, flops=flops, seconds=known, tokenising=tokenising)


def estimate(state: State, plan: Plan) -> dict[str, Estimate]:
    """Estimates of the assets that a model scores; those that keep their rows count nothing."""
    return Estimator(state).assets(scored_work(plan))


def estimate_shards(state: State, wanted: Mapping[str, Sequence[str]]) -> dict[tuple[str, str], Estimate]:
    """Estimates by (asset, shard), each as the process takes that scores it; `wanted` names the shards of each asset.

    `cam` and `perplexity/long` asked for together share the pass of theta_B, which counts for the perplexity.
    """
    return Estimator(state).shards(wanted)


def scored_work(plan: Plan) -> dict[str, list[str]]:
    """The shards of each asset of the plan that a model scores."""
    scored = [work for work in plan.work if work.asset == _CAM or work.asset.startswith("perplexity/")]
    return {work.asset: work.partitions for work in scored}


def processes(scoring: ScoringConfig) -> tuple[int, int]:
    """How many processes score, and for how many of them there is a device, or a core for each of their threads."""
    import torch

    from gateau_dagster.scoring.placement import worker_devices

    devices = worker_devices(scoring, scoring.device)
    if devices[0].startswith("cuda") or (scoring.device == "auto" and torch.cuda.is_available()):
        return len(devices), len({*devices})
    return len(devices), max(1, (os.cpu_count() or 1) // torch.get_num_threads())


def cores_taken(scoring: ScoringConfig) -> int:
    """Cores that one process computes on; 0 when it has a GPU for that."""
    import torch

    from gateau_dagster.scoring.loading import resolve_device

    return 0 if resolve_device(scoring.device).type == "cuda" else torch.get_num_threads()


@dataclass(frozen=True, kw_only=True)
class _Part:
    """FLOPs of each sample [samples], by what they are made of; `passes` counts model calls."""

    passes: Numbers | float = 0.0
    linear: Numbers | float = 0.0
    attention: Numbers | float = 0.0
    segments: Numbers | float = 0.0
    head: Numbers | float = 0.0
    rows: Numbers | float = 0.0

    @property
    def flops(self) -> Numbers:
        return np.asarray(self.linear + self.attention + self.segments + self.head + self.rows)

    def seconds(self, speed: Speed) -> Numbers:
        names = ("linear", "attention", "segments", "head", "rows")
        return np.asarray(self.passes * speed.overhead + sum(getattr(self, n) * getattr(speed, n) for n in names))


def _full_pass(shape: ModelShape, tokens: PromptTokens, count: Numbers, *, head: bool) -> _Part:
    """The passes over whole prompts, for a model that computes its last layer where it is read only (most do)."""
    return _Part(
        passes=count,
        linear=count * shape.linear_pass_flops(tokens.prompt, tokens.response),
        attention=count * shape.attention_pass_flops(tokens.prompt, tokens.response),
        head=count * shape.head_flops(1.0) * tokens.response if head else 0.0,
    )


def _segments(shape: ModelShape, tokens: PromptTokens, alone: Numbers) -> _Part:
    """The passes over the segment prompts (Eq. 3), and over the prompts without context of the samples with `alone`."""
    whole, last = np.maximum(tokens.segments - 1, 0), np.minimum(tokens.segments, 1)
    return _Part(
        segments=whole * shape.pass_flops(tokens.segment_prompt, tokens.response)
        + last * shape.pass_flops(tokens.last_segment, tokens.response)
        + alone * shape.pass_flops(tokens.tail, tokens.response),
        head=shape.head_flops(1.0) * (tokens.segments + alone) * tokens.response,
    )


def _rows(shape: ModelShape, tokens: PromptTokens) -> _Part:
    """The attention of the response to the context (Eq. 4)."""
    rows = tokens.response * (tokens.segments > 0)
    return _Part(rows=rows * shape.attention_row_flops_each(tokens.prompt))


def _as_measured(pair: dict[tuple[str, str], Estimate]) -> dict[tuple[str, str], Estimate]:
    """The seconds that two tables take together, split as the measured ones are: by FLOPs."""
    seconds, flops = (_total([getattr(each, name) for each in pair.values()]) for name in ("seconds", "flops"))
    if seconds is None or not flops:
        return pair
    return {key: replace(each, seconds=seconds * (each.flops or 0.0) / flops) for key, each in pair.items()}


def _sum(cost: _Cost, chosen: npt.NDArray[np.bool_], slower: float, cores: int) -> Estimate:
    """`cores`: that the model computes on, and takes from the tokenising beside it; 0: a device of its own."""
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
