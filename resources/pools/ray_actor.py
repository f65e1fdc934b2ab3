"""A scoring worker on a node of a Ray cluster: loads the model once, scores pieces, and tells how far it is.

Ray is not imported here: the class becomes an actor where the step makes it one (see ray_crew.py).
"""

import os
import socket
import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import polars as pl

from gateau_dagster.config import Config
from gateau_dagster.errors import GateauError
from gateau_dagster.execution.pieces import Piece, PieceResult
from gateau_dagster.execution.row_checkpoints import save_all_rows
from gateau_dagster.execution.shard_scorer import ShardReport, ShardScorer
from gateau_dagster.execution.shard_work import read_samples
from gateau_dagster.storage import Store
from resources.pools.failed import Failed, portable
from resources.pools.node_check import Expected, problems
from resources.pools.node_model import node_model

if TYPE_CHECKING:
    from gateau_dagster.models.loading import LoadedModel

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class NodeTask:
    """What a worker is for. model, version: see `ScoringTask`. device: in the words of scoring.device."""

    config: Config
    model: str
    version: str
    device: str
    threads: int
    expected: Expected


@dataclass(frozen=True, kw_only=True)
class Started:
    """A worker that has loaded its model. name: for people. node: its id in the cluster."""

    name: str
    node: str


@dataclass(frozen=True, kw_only=True)
class Refused:
    """Why a node may not score, a line each."""

    lines: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Look:
    """What a worker is at: the piece of this number.

    in_hand: ids of the samples that it is scoring. report: of the piece, at its last sample.
    """

    number: int
    in_hand: frozenset[str]
    report: ShardReport | None


@dataclass(frozen=True, kw_only=True)
class Scored:
    """A piece is done. report: at its last sample."""

    result: PieceResult
    report: ShardReport | None


class ScoringActor:
    """See above. `look` and `save` answer while `score` works."""

    def __init__(self, task: NodeTask) -> None:
        self._task = task
        self._store = Store(task.config.located_root)
        self._loaded: LoadedModel | None = None
        self._texts: tuple[str, pl.DataFrame] | None = None
        self._lock = threading.Lock()
        self._number = 0
        self._taken: list[str] = []
        self._finished = 0
        self._report: ShardReport | None = None

    def start(self) -> Started | Refused | Failed:
        """Looks whether this node may score, and loads the model."""
        return self._told(self._started)

    def score(self, number: int, piece: Piece) -> Scored | Failed:
        """A piece; its rows are in the store when it is done."""
        return self._told(lambda: self._scored(number, piece))

    def look(self) -> Look:
        """What it is at."""
        with self._lock:
            return Look(number=self._number, in_hand=frozenset(self._taken[self._finished :]), report=self._report)

    def save(self) -> None:
        """Saves the rows that wait; the worker is about to end."""
        save_all_rows()

    def _started(self) -> Started | Refused:
        import ray

        if found := problems(self._task.expected):
            return Refused(lines=tuple(f"{socket.gethostname()}: {line}" for line in found))
        self._model()
        return Started(
            name=f"{socket.gethostname()}, process {os.getpid()}", node=ray.get_runtime_context().get_node_id()
        )

    def _model(self) -> "LoadedModel":
        if self._loaded is None:
            self._loaded = _load(self._task)
        return self._loaded

    def _scored(self, number: int, piece: Piece) -> Scored:
        with self._lock:
            self._number, self._taken, self._finished, self._report = number, [], 0, None
        scorer = ShardScorer(self._task.config, self._task.model, self._model)
        result = scorer.piece(self._store, piece, self._advance, on_taken=self._take, texts=self._samples)
        return Scored(result=result, report=self._report)

    def _samples(self, store: Store, shard: str) -> pl.DataFrame:
        """The shard's; the last one is kept, since its pieces follow each other."""
        if self._texts is None or self._texts[0] != shard:
            self._texts = None
            self._texts = shard, read_samples(store, shard)
        return self._texts[1]

    def _take(self, sample_id: str) -> None:
        with self._lock:
            self._taken.append(sample_id)

    def _advance(self, report: ShardReport) -> None:
        with self._lock:
            self._finished, self._report = report.progress.scored, report

    def _told(self, work: Callable[[], T]) -> T | Failed:
        """An exception crosses to the step without its traceback, which goes into the worker's log."""
        try:
            return work()
        except Exception as error:
            traceback.print_exc()
            return Failed(error=_placed(portable(error)))


def _placed(error: Exception) -> Exception:
    """A defect says on which machine; a message for users says what it is about."""
    if not isinstance(error, GateauError):
        error.add_note(f"(on {socket.gethostname()})")
    return error


def _load(task: NodeTask) -> "LoadedModel":
    import torch

    from gateau_dagster.models.encoders import load_for_task

    torch.set_num_threads(task.threads)
    config, scoring = task.config, task.config.scoring
    section = node_model(config, task.model, task.version)
    return load_for_task(
        section, dtype=scoring.dtype, device=task.device, folder=config.folder, device_map=scoring.device_map
    )
