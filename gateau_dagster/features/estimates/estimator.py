"""Estimate the work of a plan: tokens from the lengths of texts, FLOPs from the shapes of models, and the time.

The time comes from shards of this store that were scored on this device. Before any has run, a pass is expected at MOST
x width / (width + HALF_WIDTH) of the speed of one matrix product. Work outside matrix products (norms, softmax,
dispatch) grows with the model's width, while the matrices grow with its square.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property, partial
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from gateau_dagster.config import Config, ScoringConfig
from gateau_dagster.execution.row_checkpoints import FOLDER, RowCheckpoints
from gateau_dagster.features.estimates.scored_model import ScoredModel
from gateau_dagster.methods.registry import all_sample_tables
from gateau_dagster.pipeline.plan import Plan
from gateau_dagster.pipeline.state import State
from gateau_dagster.pipeline.work_forecast import PEAKS, AssumedDevices, WorkForecast
from gateau_dagster.storage.stamp import Stamp

if TYPE_CHECKING:
    from gateau_dagster.scoring.sample_table import Effort


@dataclass(frozen=True, kw_only=True)
class Workers:
    """The workers that score.

    devices: the device of each worker; several workers on one device take turns.
    piece_seconds: the size of a work piece in seconds; None: a whole shard, because a process of this machine takes
        whole shards from the queue.
    """

    devices: Sequence[str]
    piece_seconds: float | None = None

    def for_shards(self, count: int) -> Workers:
        """Return the workers that get at least one of `count` shards."""
        if self.piece_seconds is not None:
            return self
        return replace(self, devices=self.devices[: max(1, count)])

    @property
    def sharing(self) -> float:
        """Return the average number of workers per device."""
        return len(self.devices) / len({*self.devices})

    def seconds(self, shards: Iterable[float]) -> float:
        """Return the seconds until the last shard is done; a free worker takes the next shard or piece.

        shards: the seconds that a worker needs for each shard beside the others on its device, in queue order.
        """
        free = [0.0] * len({*self.devices})  # time at which each device is free
        # A simulation, since the sum over devices promises too little: the last shard keeps one device busy while
        # others wait.
        for taken in (piece / self.sharing for shard in shards for piece in self._pieces(shard)):
            heapq.heapreplace(free, free[0] + taken)
        return max(free)

    def _pieces(self, shard: float) -> Iterable[float]:
        if self.piece_seconds is None:
            return [shard]
        count = max(1, round(shard / self.piece_seconds))
        return [shard / count] * count


def configured_workers(config: Config) -> Workers:
    """Return the configured workers, with the amount of work that each takes at a time.

    Raises:
        GateauError: some settings exclude each other.
    """
    from gateau_dagster.models.devices import worker_devices

    if (ray := config.execution.ray) is not None:
        share = min(ray.gpus or 1.0, 1.0)  # per GPU; several shares count as one device
        devices = [f"ray:{int(number * share)}" for number in range(ray.workers)]
        return Workers(devices=devices, piece_seconds=60 * ray.piece_minutes)
    return Workers(devices=worker_devices(config.scoring, config.scoring.device))


def asked_workers(config: Config, count: int) -> Workers:
    """Return `count` workers, each with a separate device; their batches are as configured."""
    return replace(configured_workers(config), devices=[f"{number}" for number in range(count)])


MOST, HALF_WIDTH = 0.8, 300
REACHED = 0.73
"""Share of a GPU's peak that one large matrix product reaches, as measured on an H100 (docs/evidence/benchmarks.md)."""
# The factor by which the estimated time may be wrong: before any run, and with records of other tables only.
SPREAD, SPREAD_OF_OTHERS = 2.5, 2.0
_IDENTITY = pl.Schema({"sample_id": pl.String(), "digest": pl.String()})
RAW = "raw_long_sft"
_NONE = pl.Series([], dtype=pl.String())
Shards = Mapping[str, Sequence[str]]  # by asset


@dataclass(frozen=True, kw_only=True)
class Pace:
    """A table's ratio of actual to expected seconds: `factor`, within a factor of `within`. `grounds`: their source."""

    factor: float
    within: float
    grounds: str


class Device:
    """The device that scores, here or another one.

    product: FLOP/s of a matrix product; None if memory for one is short. speed: its source, in words.

    Args:
        name: of another device, one of PEAKS; None: `scoring.device` of this machine.
    """

    def __init__(self, scoring: ScoringConfig, name: str | None = None) -> None:
        import torch

        self.name, self.dtype, self.threads = name, scoring.dtype, torch.get_num_threads()
        if name is not None:
            peak = PEAKS[name][scoring.dtype == "float32"]
            self.kind, self.product = "cuda", REACHED * peak
            self.speed = f"{name}'s peak of {peak / 1e12:,.0f} TFLOP/s ({self.dtype}), {REACHED:.0%} of it"
            return

        from gateau_dagster.models.devices import matrix_product_speed, resolve_device

        device = resolve_device(scoring.device)
        self.kind, self.product = device.type, matrix_product_speed(str(device), scoring.dtype)
        if self.product is not None:
            self.speed = (
                f"a matrix product of {self.product / 1e9:,.0f} GFLOP/s on this device ({self.kind}, {self.dtype})"
            )


class Estimator:
    """Estimates for a state; measurements of a model or a table are shared by all of them.

    tables: model and effort of each.

    Args:
        assumed: the devices that the times are for. Recorded times count only for the device of this machine.
    """

    def __init__(self, state: State, assumed: AssumedDevices = AssumedDevices()) -> None:  # noqa: B008
        self.state, self.assumed = state, assumed
        self.model = cache(partial(ScoredModel, state))
        tables = all_sample_tables(state.config)
        self.tables: dict[str, tuple[str, Effort | None]] = {
            asset: (table.model, table.effort) for asset, table in tables.items()
        }
        self._other_efforts = {asset: table.other_efforts for asset, table in tables.items()}
        self._shared = {asset: table.shared.name for asset, table in tables.items() if table.shared is not None}
        self._identities: dict[str | None, pl.DataFrame] = {}
        self._stamps = cache(lambda asset: state.store.stamps((asset, shard) for shard in state.shards))

    @cached_property
    def device(self) -> Device:
        """Return the device, measured only if there is something to score."""
        return Device(self.state.config.scoring, self.assumed.name)

    @cached_property
    def workers(self) -> Workers:
        """Return the workers that the estimate assumes."""
        config, count = self.state.config, self.assumed.workers
        return configured_workers(config) if count is None else asked_workers(config, count)

    def scored(self, plan: Plan) -> dict[str, list[str]]:
        """Return the shards of each asset of a plan that a model scores."""
        return {work.asset: work.partitions for work in plan.work if work.asset in self.tables}

    def assets(self, wanted: Shards) -> dict[str, WorkForecast]:
        """Return forecasts by asset, with the time of all workers together."""
        samples = {asset: self._outstanding(asset, shards) for asset, shards in wanted.items()}
        found: dict[str, WorkForecast] = {}
        for asset, shards in wanted.items():
            workers = self.workers.for_shards(len(shards))
            pace, common = self._pace(asset, slower=workers.sharing), self._common(asset, samples)
            work = partial(self._work, asset, samples[asset], common)
            forecast = partial(_forecast, asset, pace=pace, workers=workers)
            others = {setting: forecast(work(effort)) for setting, effort in self._other_efforts[asset].items()}
            found[asset] = replace(forecast(work()), by_setting=others)
        return found

    def _common(self, asset: str, samples: Mapping[str, pl.DataFrame]) -> pl.Series:
        """Return the ids of the samples for which one pass over the whole prompt also serves other requested tables."""
        step = self._shared.get(asset)
        together = [each["sample_id"] for other, each in samples.items() if step and self._shared.get(other) == step]
        if len(together) < 2:
            return _NONE
        found = together[0]
        for ids in together[1:]:
            found = found.filter(found.is_in(ids.implode()))
        return found

    def _outstanding(self, asset: str, shards: Sequence[str]) -> pl.DataFrame:
        """Return the samples of the input's index that need a new row."""
        wanted = self.state.index.accepted.filter(pl.col("shard").is_in([int(shard) for shard in shards]))
        store, rows = self.state.store, self.state.row_stamp(asset)
        if rows is None:
            return wanted
        stamps, columns, asked = self._stamps(asset), _IDENTITY.names(), {*shards}
        made = {key: each for key, each in stamps.items() if each and each.scorer == rows.scorer and key[1] in asked}
        kept = [self._rows(*key, stamp) for key, stamp in made.items()]
        kept += [each.select(columns) for each in self.state.derivable(asset, shards).values()]
        for shard in {*store.files.names(f"{FOLDER}/{asset}")} & asked:  # of an interrupted run
            kept.append(RowCheckpoints(store, asset, shard, rows.scorer, _IDENTITY).load().select(columns))
        return wanted.join(pl.concat(kept), on=columns, how="anti") if kept else wanted

    def _rows(self, asset: str, shard: str | None, stamp: Stamp) -> pl.DataFrame:
        """Return _IDENTITY of a table's rows; it is read once for all tables with every sample of a shard."""
        raw = self._stamps(RAW).get((RAW, shard))
        made_of = stamp.inputs.get("upstream", {}).get(RAW)
        if raw is None or made_of not in {raw.fingerprint, raw.content} or stamp.rows != raw.rows:
            return self.state.store.read(asset, shard, _IDENTITY.names())
        if shard not in self._identities:
            self._identities[shard] = self.state.store.read(RAW, shard, _IDENTITY.names())
        return self._identities[shard]

    def _work(self, asset: str, samples: pl.DataFrame, common: pl.Series, other: Effort | None = None) -> pl.DataFrame:
        """Return `shard`, `sample_id`, `characters` to tokenise, `expected` seconds, and `tokens` and `flops` if known.

        `common`: ids of the samples with passes that also serve another table. `other`: the effort by another setting.
        """
        name, effort = self.tables[asset]
        effort = other or effort
        if effort is None:
            return samples.select("shard", "sample_id", characters=0.0, expected=1.0)
        shared = samples["sample_id"].is_in(common.implode()).to_numpy()
        planned = effort(self.model(name).sample_tokens(samples, shared))
        flops = self.model(name).flops(planned)
        # A text that two tables share is tokenised once for both.
        characters = samples["characters" if planned.reads_context else "tail_characters"].to_numpy() / (1 + shared)
        columns = {"characters": characters, "tokens": planned.tokens} | ({} if flops is None else {"flops": flops})
        work = pl.DataFrame({"shard": samples["shard"], "sample_id": samples["sample_id"], **columns})
        return work.with_columns(expected=self._expected(asset, work))

    def _expected(self, asset: str, amounts: Any) -> Any:
        """Return the expected seconds at the device's speed; if FLOPs or tokens are unknown, a quantity proportional to
        them.

        `amounts`: numbers or columns `samples`, `tokens`, `flops` and `characters`, as far as they are needed.
        """
        name, effort = self.tables[asset]
        speed, device = self._speed(asset), self.device
        if speed is None:
            return amounts["samples" if effort is None else "tokens"]
        # Tokenising uses one core: a CPU loses it for the model, while a GPU runs meanwhile.
        tokenising = amounts["characters"] * self.model(name).rates.seconds
        if device.kind == "cpu":
            return amounts["flops"] / speed + tokenising / device.threads
        return np.maximum(amounts["flops"] / speed, tokenising)

    @property
    def grounds(self) -> str:
        """Return the source of times that follow from the device's speed only."""
        place = "this device" if self.assumed.name is None else self.assumed.name
        return f"the speed of one matrix product on {place}"

    def speed(self, model: str) -> float | None:
        """Return the device's expected FLOP/s; None for a model of unknown shape or one that generates no text."""
        shape, product = self.model(model).shape, self.device.product
        if shape is None or product is None:
            return None
        return product * MOST * shape.hidden / (shape.hidden + HALF_WIDTH)

    def _speed(self, asset: str) -> float | None:
        model, effort = self.tables[asset]
        return None if effort is None else self.speed(model)

    def _pace(self, asset: str, *, slower: float) -> Pace | None:
        """Return the pace from this table's recorded shards, else from other tables, else only from the device."""
        speed, place = self._speed(asset), f"on this device ({self.device.kind}, {self.device.dtype})"
        tables, within, whose = [asset], 1.0, ""
        if not self._efforts(asset) and speed is not None:
            tables = [other for other in self.tables if self._efforts(other) and self._speed(other) is not None]
            within, whose = SPREAD_OF_OTHERS, " of other tables"
        recorded = [seconds for table in tables for seconds in self._recorded(table)]
        expected = sum(each for _, each in recorded)
        if expected:
            grounds = f"{len(recorded)} recorded shards{whose} {place}"
            return Pace(factor=sum(taken for taken, _ in recorded) / expected, within=within, grounds=grounds)
        if speed is None or self.device.product is None:
            return None
        grounds = f"{self.device.speed} and {speed / self.device.product:.0%} of that"
        if self.device.name is None:
            grounds += "; the range narrows once something has run"
        return Pace(factor=slower, within=SPREAD, grounds=grounds)

    def _efforts(self, asset: str) -> list[Mapping[str, Any]]:
        """Return `Stamp.effort` of the shards that were scored on the same kind of device in the same precision."""
        if self.device.name is not None:  # a stamp names the kind of its device, which is not enough for another one
            return []
        return [
            stamp.effort
            for stamp in self._stamps(asset).values()
            if stamp is not None
            and stamp.effort.get("seconds")
            and stamp.effort["device"].split(":")[0] == self.device.kind
            and stamp.inputs.get("settings", {}).get("scoring.dtype") == self.device.dtype
        ]

    def _recorded(self, asset: str) -> list[tuple[float, float]]:
        """Return recorded and expected seconds of each recorded shard. Texts count with the input's average length."""
        efforts = self._efforts(asset)
        if not efforts:
            return []
        average = self._work(asset, self.state.index.accepted, _NONE)["characters"].mean()
        amounts = [{**effort, "characters": average * effort["samples"]} for effort in efforts]
        return [(each["seconds"], self._expected(asset, each)) for each in amounts]


def _forecast(asset: str, work: pl.DataFrame, *, pace: Pace | None, workers: Workers) -> WorkForecast:
    """Return the sums of `Estimator._work`, and the time of these workers."""
    sums, middle = work.sum().row(0, named=True), None
    if pace is not None:
        each = work.group_by("shard").agg(pl.col("expected").sum()).sort("shard")["expected"]
        middle = workers.seconds(pace.factor * each)
    return WorkForecast(
        asset=asset,
        samples=work.height,
        amount=round(sums["tokens"]) if "tokens" in sums else None,
        unit="tokens",
        flops=sums.get("flops"),
        seconds=middle,
        low=middle and pace and middle / pace.within,
        high=middle and pace and middle * pace.within,
        devices=len(workers.devices),
        grounds=pace.grounds if pace is not None else "not known before it has run on this device",
    )
