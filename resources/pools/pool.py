"""What a worker pool is: it scores the shards of one step in several workers, whatever becomes of one of them."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from gateau_dagster.config import Config, ModelConfig
from gateau_dagster.execution.shard_scorer import Report
from gateau_dagster.execution.shard_work import ShardResult, TableWork

Warn: TypeAlias = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class ScoringTask:
    """What the workers of a step are for.

    model: name in the configuration. section: the model's, with a path that can be loaded.
    devices: one for each worker, in the words of `scoring.device`.
    """

    config: Config
    model: str
    section: ModelConfig
    devices: Sequence[str]


class ScoringWorkers(Protocol):
    """The workers of one step. Each loads the model once, saves rows and writes tables itself."""

    def results(
        self, shards: Mapping[str, Sequence[TableWork]], report: Report
    ) -> Iterator[tuple[str, dict[str, ShardResult]]]:
        """Each shard once, with its results by asset, as soon as a worker has written it.

        The shard of a worker that is lost goes to another one, by the rule of `ShardQueue`.

        Args:
            report: called as shards advance, in the process of the step.

        Raises:
            GateauError: a shard has lost its worker too often, or no worker is left and none can be started. What a
                worker itself reports to have failed is raised as it was there.
        """
        ...


@dataclass(frozen=True, kw_only=True)
class Pool:
    """A way to run workers, as `execution.pool` names it.

    workers: none of them outlives the block, however that ends. Its second argument takes a line of warning for the
        log of the run: which worker was lost, how, and with which shard.
    """

    name: str
    workers: Callable[[ScoringTask, Warn], AbstractContextManager[ScoringWorkers]]
