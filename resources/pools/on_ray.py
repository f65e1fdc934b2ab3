"""Score on a Ray cluster: actors load the model once, and receive pieces of shards from one queue."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from types import TracebackType

from gateau_dagster.config import Config
from gateau_dagster.config.execution import RayConfig
from gateau_dagster.evaluation.generation.asked import Engine
from gateau_dagster.execution.shard_scorer import Report
from gateau_dagster.execution.shard_tables import ShardResult, TableWork
from gateau_dagster.pipeline.loadable import Placed
from gateau_dagster.storage import Store, fence
from resources.pools.answers_on_ray import RayAnswers
from resources.pools.node_actor import NodeTask
from resources.pools.node_check import marked_store
from resources.pools.open_shards import OpenShards
from resources.pools.piece_queue import PieceQueue
from resources.pools.pool import Pool, ScoringTask, Warn
from resources.pools.ray_connection import connected
from resources.pools.ray_crew import Crew, Done, Event, Looked, Lost
from resources.pools.ray_staff import Staff
from resources.pools.scoring_actor import ScoringActor

# The longest wait for an event.
_SECONDS = 0.5


class RayWorkers:
    """Scoring workers on a Ray cluster. They save rows with each piece; the step's process makes the tables."""

    def __init__(self, task: ScoringTask, warn: Warn) -> None:
        self._task, self._warn = task, warn
        self._ray = _section(task.config)
        self._opened = ExitStack()

    def __enter__(self) -> "RayWorkers":
        with ExitStack() as opening:
            task = opening.enter_context(_on_cluster(self._task.config, self._task.placed, self._task.model))
            self._crew = Crew(self._ray, ScoringActor, task)
            opening.callback(self._crew.close)
            self._opened = opening.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._opened.close()

    def results(
        self, shards: Mapping[str, Sequence[TableWork]], report: Report
    ) -> Iterator[tuple[str, dict[str, ShardResult]]]:
        """Implement ScoringWorkers.results."""
        opened = OpenShards(Store(self._task.config.located_root), report)
        queue = PieceQueue(
            shards=shards,
            lacking=lambda shard: opened.open(shard, shards[shard]),
            costs=self._task.costs,
            workers=self._ray.workers,
            seconds=self._ray.piece_minutes * 60,
            warn=self._warn,
        )
        staff = Staff(self._crew, self._ray.workers, self._warn)
        try:
            # The next pieces come first, since the caller's work on a shard takes time.
            while (busy := staff.serve(queue)) or opened:
                yield from opened.finished(patience=0.0 if busy else _SECONDS)
                for event in self._crew.events(_SECONDS) if busy else []:
                    staff.heed(event)
                    _heed(event, queue, opened)
        finally:
            opened.close()


@contextmanager
def _answers(config: Config, placed: Placed, template: str, warn: Warn) -> Iterator[Engine]:
    """Implement Pool.answers."""
    with _on_cluster(config, placed, template) as task, closing(RayAnswers(_section(config), task, warn)) as engine:
        yield engine


@contextmanager
def _on_cluster(config: Config, placed: Placed, more: str) -> Iterator[NodeTask]:
    """Yield the task for actors that start within the block."""
    ray = _section(config)
    with connected(ray), marked_store(config.located_root, cuda=ray.gpus > 0) as expected:
        yield NodeTask(
            config=config,
            placed=placed,
            more=more,
            device=_devices(config, "", 1)[0],
            threads=max(1, int(ray.cpus)),
            expected=expected,
            leases=fence.exported(),
        )


def _heed(event: Event, queue: PieceQueue, opened: OpenShards) -> None:
    if isinstance(event, Looked) and event.look.report is not None:
        opened.advance(event.worker, event.look.report)
    elif isinstance(event, Done):
        report = event.answer.report
        queue.took(event.job, report.seconds if report is not None else 0.0)
        opened.add(event.worker, event.job, event.answer.result, report)
    elif isinstance(event, Lost) and event.job is not None:
        opened.lose(event.worker, event.job)
        given_up = queue.give_back(event.job, event.how, event.in_hand, machine=event.machine)
        if given_up is not None:
            opened.add(None, event.job, given_up)


def _section(config: Config) -> RayConfig:
    assert config.execution.ray is not None, "the configuration checks it"
    return config.execution.ray


def _devices(config: Config, place: str, shards: int) -> list[str]:
    """Return a device per worker; the GPU that Ray assigns to a worker is the only one that it sees."""
    del place, shards  # place is this machine's, and shards are cut into pieces
    ray, spread = _section(config), config.scoring.device_map is not None
    return [("auto" if spread else "cuda") if ray.gpus else "cpu"] * ray.workers


POOL = Pool(name="ray", workers=RayWorkers, devices=_devices, answers=_answers, elsewhere=True)
