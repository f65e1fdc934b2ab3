"""Describe the workers of a plan: how many score side by side, and how long they need for uneven shards."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from gateau_dagster.config import Config


@dataclass(frozen=True, kw_only=True)
class Workers:
    """The workers that score.

    devices: of each worker; several workers on one device take turns.
    piece_seconds: the size of a work piece; None: a whole shard, the least that a process of this machine takes from
        the queue.
    """

    devices: Sequence[str]
    piece_seconds: float | None = None

    def for_shards(self, count: int) -> Workers:
        """Return the workers that have something to do."""
        if self.piece_seconds is not None:
            return self
        return replace(self, devices=self.devices[: max(1, count)])

    @property
    def sharing(self) -> float:
        """Return the average number of workers per device."""
        return len(self.devices) / len({*self.devices})

    def seconds(self, shards: Iterable[float]) -> float:
        """Return the time until the last shard is done: a free worker takes the next shard, or piece of one.

        shards: a worker's seconds for each, next to the others on its device; in the order of the queue.
        """
        free = [0.0] * len({*self.devices})  # time at which each device is free
        for taken in (piece / self.sharing for shard in shards for piece in self._pieces(shard)):
            heapq.heapreplace(free, free[0] + taken)
        return max(free)

    def _pieces(self, shard: float) -> Iterable[float]:
        if self.piece_seconds is None:
            return [shard]
        count = max(1, round(shard / self.piece_seconds))
        return [shard / count] * count


def configured_workers(config: Config) -> Workers:
    """Return the configured workers: the number in each pool, and what each takes at a time.

    Raises:
        GateauError: settings that exclude each other.
    """
    from gateau_dagster.models.devices import worker_devices

    if (ray := config.execution.ray) is not None:
        share = min(ray.gpus or 1.0, 1.0)  # per GPU; several shares count as one device
        devices = [f"ray:{int(number * share)}" for number in range(ray.workers)]
        return Workers(devices=devices, piece_seconds=60 * ray.piece_minutes)
    return Workers(devices=worker_devices(config.scoring, config.scoring.device))


def asked_workers(config: Config, count: int) -> Workers:
    """Return `count` workers, each with a device of its own; what each takes at a time is as configured."""
    return replace(configured_workers(config), devices=[f"{number}" for number in range(count)])
