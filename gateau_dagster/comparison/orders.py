"""The methods' scores as arrays, and the order that each puts the samples in."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from gateau_dagster.selection.normalise import Vector

Mask = NDArray[np.bool_]
SCORE = "score:"
"""Prefix of a method's column."""


@dataclass(frozen=True, kw_only=True)
class Orders:
    """M methods over n samples in order of id.

    scores: float64 [M, n], NaN where the method cannot score the sample. places: int32 [M, n], 1 is the best, equal
    scores in order of id; 0 where there is no score.
    """

    names: tuple[str, ...]
    scores: NDArray[np.float64]
    places: NDArray[np.int32]

    @property
    def samples(self) -> int:
        """n."""
        return self.scores.shape[1]

    @property
    def scored(self) -> list[int]:
        """How many samples each method scores, [M]."""
        return [int(count) for count in (self.places > 0).sum(axis=1)]

    def first(self, method: int, wanted: int) -> Mask:
        """The `wanted` samples that a method ranks first, bool [n]: fewer when it scores fewer, never one without a
        score."""
        return (self.places[method] > 0) & (self.places[method] <= wanted)

    def of(self, rows: Mask) -> "Orders":
        """The same methods over some of the samples, ranked among these."""
        return orders_of(self.names, self.scores[:, rows])

    def pairs(self) -> list[tuple[int, int]]:
        """Each two methods once."""
        count = len(self.names)
        return [(first, second) for first in range(count) for second in range(first + 1, count)]


def read_orders(frame: pl.DataFrame, names: Sequence[str]) -> Orders:
    """Orders from columns `score:<name>` (f64, null: no score) of a frame that is sorted by `sample_id`.

    Raises ValueError for a column that is missing, or that holds NaN or an infinite value.
    """
    missing = [name for name in names if SCORE + name not in frame.columns]
    if missing:
        raise ValueError(f"no column {SCORE}{missing[0]} for a method that is to be compared")
    scores = np.empty((len(names), frame.height))
    for row, name in enumerate(names):
        column = frame[SCORE + name].cast(pl.Float64)
        if not column.is_finite().all():
            raise ValueError(f"{SCORE}{name} holds a value that is not finite: a sample without a score is null")
        scores[row] = column.fill_null(float("nan")).to_numpy()
    return orders_of(tuple(names), scores)


def orders_of(names: tuple[str, ...], scores: NDArray[np.float64]) -> Orders:
    """Orders of scores [M, n], NaN where there is none."""
    places = np.zeros(scores.shape, dtype=np.int32)
    for row, values in enumerate(scores):
        places[row] = _places(values)
    return Orders(names=names, scores=scores, places=places)


def _places(values: Vector) -> NDArray[np.int32]:
    order = np.argsort(-values, kind="stable")  # NaN comes last
    known = order[: values.size - int(np.isnan(values).sum())]
    places = np.zeros(values.size, dtype=np.int32)
    places[known] = np.arange(1, known.size + 1)
    return places
