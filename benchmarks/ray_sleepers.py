"""Workers that note when they begin to score, and ones that only sleep, as long as each sample is said to take.

Nodes and processes import this file.
"""

import os
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from gateau_dagster.execution.pieces import Piece, PieceResult, Texts, compute_piece
from gateau_dagster.execution.shard_scorer import Report, ShardReport, ShardScorer, _Measured
from gateau_dagster.execution.shard_work import OnTaken, ShardProgress
from gateau_dagster.scoring.sample_table import Asked, Outcomes
from gateau_dagster.storage import Store


class Watched(dict[str, Any]):
    """A plan (`TableWork.planned`) that has the worker that it is sent to note in a folder when it begins to score."""

    def __init__(self, notes: Path) -> None:
        super().__init__()
        self.notes = notes

    def __reduce__(self) -> tuple[Any, ...]:
        return _watch, (str(self.notes),)


class Sleeping(Watched):
    """One that has it sleep instead, seconds by sample."""

    def __init__(self, notes: Path, seconds: dict[str, float]) -> None:
        super().__init__(notes)
        self.update(seconds)

    def __reduce__(self) -> tuple[Any, ...]:
        return _sleep, (str(self.notes), dict(self))


def began(notes: Path) -> float:
    """When the first worker began, by this machine's monotonic clock."""
    return min(float(file.read_text()) for file in notes.iterdir())


def _note(notes: str) -> None:
    file = Path(notes, str(os.getpid()))
    if not file.exists():
        file.write_text(str(time.monotonic()))


def _watch(notes: str) -> dict[str, Any]:
    """In the worker. Its model is loaded when it is asked for outcomes."""
    score = _Measured.score

    def noted(self: _Measured, asked: Iterable[Asked]) -> Iterator[Outcomes]:
        _note(notes)
        return score(self, asked)

    if score.__name__ != noted.__name__:  # it may get several of them
        _Measured.score = noted  # type: ignore[method-assign]
    return {}


def _sleep(notes: str, seconds: dict[str, float]) -> dict[str, Any]:
    """In the worker."""

    def score(asked: Iterable[Asked]) -> Iterator[Outcomes]:
        _note(notes)
        for each in asked:
            time.sleep(seconds[each.sample.sample_id])
            row = {"sample_id": each.sample.sample_id, "digest": each.sample.digest}
            yield dict.fromkeys(each.assets, row)

    def piece(
        self: ShardScorer, store: Store, piece: Piece, report: Report, *, on_taken: OnTaken, texts: Texts
    ) -> PieceResult:
        del self
        started = time.monotonic()

        def on_sample(progress: ShardProgress) -> None:
            spent = time.monotonic() - started
            report(ShardReport(shard=piece.shard, progress=progress, tokens=0, seconds=spent))

        return compute_piece(store, piece, score=score, on_sample=on_sample, on_taken=on_taken, texts=texts)

    ShardScorer.piece = piece  # type: ignore[method-assign]
    return {}
