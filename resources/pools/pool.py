"""What a worker pool is: it scores the shards of one step in several workers, whatever becomes of one of them."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from gateau_dagster.config import Config, ModelConfig
from gateau_dagster.evaluation.generation.asked import Engine
from gateau_dagster.execution.shard_scorer import Report
from gateau_dagster.execution.shard_tables import ShardResult, TableWork
from gateau_dagster.pipeline.loadable import Placed

Warn: TypeAlias = Callable[[str], None]
# Of a shard's samples, by id: the work that each should be, in any unit; those that are not known are absent.
Costs: TypeAlias = Callable[[str], Mapping[str, float]]


def unknown_costs(shard: str) -> Mapping[str, float]:
    """Of no sample."""
    del shard
    return {}


@dataclass(frozen=True, kw_only=True)
class ScoringTask:
    """What the workers of a step are for.

    model: name in the configuration. placed: where it is, for every machine. section: with a path that can be loaded on
    this one; None for a pool that works elsewhere.
    devices: one for each worker, in the words of `scoring.device`.
    costs: for pools that cut shards.
    """

    config: Config
    model: str
    placed: Placed
    section: ModelConfig | None
    devices: Sequence[str]
    costs: Costs = unknown_costs


class ScoringWorkers(Protocol):
    """The workers of one step. Each loads the model once and saves rows itself."""

    def results(
        self, shards: Mapping[str, Sequence[TableWork]], report: Report
    ) -> Iterator[tuple[str, dict[str, ShardResult]]]:
        """Each shard once, with its results by asset, as soon as its tables are written.

        What a worker that is lost was scoring goes to another one; a sample over which three are lost is rejected.

        Args:
            report: called as shards advance, in the process of the step.

        Raises:
            GateauError: workers are lost whatever they score, or none is left and none can be started. What a worker
                itself reports to have failed is raised as it was there.
        """
        ...


def worker_devices(config: Config, place: str, shards: int) -> list[str]:
    """A device for each process on this machine; one process for a single shard."""
    if shards < 2 and config.scoring.device_map is None:
        return [place]
    from gateau_dagster.models.devices import worker_devices

    return worker_devices(config.scoring, place)[: max(1, shards)]


@dataclass(frozen=True, kw_only=True)
class Pool:
    """A way to run workers, as `execution.pool` names it.

    workers: none of them outlives the block, however that ends. Its second argument takes a line of warning for the
        log of the run: which worker was lost, how, and with what.
    devices: of the workers, for a configuration, what the step's process is told to use (in the words of
        scoring.device) and a number of shards.
    answers: an engine that answers questions with a model that lies somewhere, by a template; None: the step's own
        process does.
    elsewhere: a single worker is one, too; else the step's own process scores in its place.
    """

    name: str
    workers: Callable[[ScoringTask, Warn], AbstractContextManager[ScoringWorkers]]
    devices: Callable[[Config, str, int], list[str]] = worker_devices
    answers: Callable[[Config, Placed, str, Warn], AbstractContextManager[Engine]] | None = None
    elsewhere: bool = False
