"""Define the worker pool: it scores the shards of one step in several workers, and survives the loss of some."""

# Which pool: `processes` needs no service, and uses all GPUs of a machine, with one process for each. `ray` needs a
# cluster, a store that all nodes reach and the same packages on all of them. It is worth that once a machine cannot
# score the data in a night (docs/how-to/machines.md).
#
# What a pool costs: each worker loads its own copy of the model. So a single shard is scored by the process of the step
# itself, where that is possible.

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from gateau_dagster.config import Config, ModelConfig
from gateau_dagster.errors import GateauError
from gateau_dagster.execution.shard_scorer import Report
from gateau_dagster.execution.shard_tables import Piece, ShardResult
from gateau_dagster.pipeline.loadable import Placed
from gateau_dagster.readable import nearest_name
from gateau_dagster.registry import registered
from gateau_dagster.resources import pools

Warn: TypeAlias = Callable[[str], None]
# From a shard to its samples' estimated work by id, in any unit; unknown samples are absent.
Costs: TypeAlias = Callable[[str], Mapping[str, float]]


@dataclass(frozen=True, kw_only=True)
class ScoringTask:
    """The task of a step's workers.

    model: name in the configuration. placed: its place, valid on every machine. section: with a path that can be loaded
    on this machine; None for a pool that works elsewhere.
    devices: one per worker, in the notation of `scoring.device`.
    costs: for pools that cut shards.
    """

    config: Config
    model: str
    placed: Placed
    section: ModelConfig | None
    devices: Sequence[str]
    costs: Costs


class ScoringWorkers(Protocol):
    """The workers of one step. Each loads the model once and saves rows itself."""

    def results(self, shards: Sequence[Piece], report: Report) -> Iterator[tuple[str, dict[str, ShardResult]]]:
        """Yield each shard once, with its results by asset, as soon as its tables are written.

        The work of a lost worker goes to another one; a sample that has lost three workers is rejected.

        Args:
            shards: whole, with samples to score.
            report: called in the process of the step as shards advance.

        Raises:
            GateauError: workers die whatever they score, or none is left and none can be started. A failure that a
                worker reports is raised unchanged.
        """
        ...


def worker_devices(config: Config, place: str, shards: int) -> list[str]:
    """Return a device for each process on this machine; one process for a single shard."""
    if shards < 2 and config.scoring.device_map is None:
        return [place]
    from gateau_dagster.models.devices import worker_devices

    return worker_devices(config.scoring, place)[: max(1, shards)]


@dataclass(frozen=True, kw_only=True)
class Pool:
    """A way to run workers, named by `execution.pool`: a file of this package that ends with POOL.

    workers: a context whose workers end with the block. The second argument receives warnings for the run's log: which
    worker was lost, how, and with what.
    devices: of the workers, from a configuration, the device of the step's process (in the notation of scoring.device)
    and a number of shards.
    elsewhere: whether even a single worker runs in the pool; otherwise the step's process scores itself.
    """

    name: str
    workers: Callable[[ScoringTask, Warn], AbstractContextManager[ScoringWorkers]]
    devices: Callable[[Config, str, int], list[str]] = worker_devices
    elsewhere: bool = False


def chosen_pool(config: Config) -> Pool:
    """Return the pool that `execution.pool` names.

    Raises:
        GateauError: there is no pool of this name.
    """
    found = {pool.name: pool for pool in registered(pools, Pool)}
    name = config.execution.pool_name
    if name not in found:
        raise GateauError(
            "execution.pool", f"execution.pool: there is no worker pool {name!r}; {nearest_name(name, sorted(found))}"
        )
    return found[name]
