"""The workers that a plan counts on: how many score side by side, and how long shards of uneven length take them."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from gateau_dagster.config import Config


@dataclass(frozen=True, kw_only=True)
class Workers:
    """devices: of each worker. Several on one device take turns on it.

    piece_seconds: what a worker is given at a time; None: a whole shard, the least that a process of this machine
        takes from the queue.
    """

    devices: Sequence[str]
    piece_seconds: float | None = None

    def for_shards(self, count: int) -> Workers:
        """Those of them that have something to do."""
        if self.piece_seconds is not None:
            return self
        return replace(self, devices=self.devices[: max(1, count)])

    @property
    def sharing(self) -> float:
        """How many of them a device has, on average."""
        return len(self.devices) / len({*self.devices})

    def seconds(self, shards: Iterable[float]) -> float:
        """Until the last one is done: whoever is free takes the next shard, or piece of one.

        shards: seconds that a worker takes for each, beside the others on its device; in the order of the queue.
        """
        free = [0.0] * len({*self.devices})  # when each device is
        for taken in (piece / self.sharing for shard in shards for piece in self._pieces(shard)):
            heapq.heapreplace(free, free[0] + taken)
        return max(free)

    def _pieces(self, shard: float) -> Iterable[float]:
        if self.piece_seconds is None:
            return [shard]
        count = max(1, round(shard / self.piece_seconds))
        return [shard / count] * count


def configured_workers(config: Config) -> Workers:
    """As the configuration has them: each pool of workers says here how many it has, and what each takes at a time.

    Raises:
        GateauError: settings that exclude each other.
    """
    from gateau_dagster.models.devices import worker_devices

    if (ray := config.execution.ray) is not None:
        share = min(ray.gpus or 1.0, 1.0)  # of a GPU; several of them count as one device
        devices = [f"ray:{int(number * share)}" for number in range(ray.workers)]
        return Workers(devices=devices, piece_seconds=60 * ray.piece_minutes)
    return Workers(devices=worker_devices(config.scoring, config.scoring.device))


def asked_workers(config: Config, count: int) -> Workers:
    """So many, each with a device of its own; what each takes at a time is as the configuration has it."""
    return replace(configured_workers(config), devices=[f"{number}" for number in range(count)])
