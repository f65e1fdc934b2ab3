"""Measure how well scores rank labelled samples: AUROC and precision with bootstrap intervals over data sets."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from common import estimate_text

Vector = npt.NDArray[np.float64]
SHARES = (0.1, 0.2, 0.4)
FIGURES = ("auroc", *(f"precision_{share * 100:.0f}" for share in SHARES))
BOUNDS = (2.5, 97.5)  # percent


@dataclass(frozen=True, kw_only=True)
class Task:
    """One question to a score: does it rank `positive` samples above the others? One entry a data set (seed).

    members: rows of each data set that take part; positive: their labels. balanced: both sides weigh the same, as for
    a kind with few samples against all others; then precision of a perfect ranking is 1 up to a share of one half.
    """

    name: str
    members: Sequence[npt.NDArray[np.int64]]
    positive: Sequence[npt.NDArray[np.bool_]]
    balanced: bool


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A figure with its bootstrap interval (2.5 to 97.5 %)."""

    value: float
    low: float
    high: float

    def show(self) -> str:
        """`0.987 (0.971-0.996)`."""
        return estimate_text((self.value, self.low, self.high))


@dataclass(frozen=True, kw_only=True)
class Figures:
    """Columns: AUROC, then precision at SHARES. `whole` [seeds, 4]; `draws` [seeds, draws, 4] of resampled samples."""

    whole: npt.NDArray[np.float64]
    draws: npt.NDArray[np.float64]


ByTask = dict[str, Figures]


def weighted_figures(scores: Vector, positive: npt.NDArray[np.bool_], weights: Vector) -> npt.NDArray[np.float64]:
    """Return AUROC and precision at SHARES, float64 [draws, 4], of samples that count `weights` [draws, n] times.

    Equal scores count half for AUROC, and by their expected share at the border of a precision.
    """
    order = np.argsort(-scores, kind="stable")
    ordered = scores[order]
    starts = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]])
    mass = weights[:, order]
    wanted = np.add.reduceat(mass * positive[order], starts, axis=1)  # per group of equal scores, best first
    group = np.add.reduceat(mass, starts, axis=1)
    others = group - wanted
    below = others.sum(axis=1, keepdims=True) - np.cumsum(others, axis=1)
    pairs = wanted.sum(axis=1) * others.sum(axis=1)
    auroc = (wanted * (below + others / 2)).sum(axis=1) / pairs
    ends = np.cumsum(group, axis=1)
    density = wanted / np.where(group > 0, group, 1.0)  # positive share of a group's mass
    return np.column_stack([auroc, *(_precision(density, group, ends, share) for share in SHARES)])


def _precision(density: Vector, group: Vector, ends: Vector, share: float) -> Vector:
    """Return the positive mass among the best `share` of all mass."""
    room = share * ends[:, -1:]
    taken = np.clip(room - (ends - group), 0.0, group)
    return (taken * density).sum(axis=1) / room[:, 0]


def resampled(positive: npt.NDArray[np.bool_], *, draws: int, rng: np.random.Generator) -> Vector:
    """Return how often each sample is drawn, float64 [draws, n]: each side with replacement, as many as it has."""
    counts = np.zeros((draws, positive.size))
    for side in (positive, ~positive):
        size = int(side.sum())
        counts[:, side] = rng.multinomial(size, np.full(size, 1 / size), size=draws)
    return counts


def drawn_weights(task: Task, *, draws: int, seed: int = 0, blocks: Sequence[int] | None = None) -> list[Vector]:
    """Return weights of each data set's members, float64 [1 + draws, n]: all of them as they are, then resampled.

    Data sets of one block are resampled alike.
    """
    found = []
    for number, positive in zip(blocks or range(len(task.positive)), task.positive, strict=True):
        rng = np.random.default_rng((seed, number))
        weights = np.vstack([np.ones(positive.size), resampled(positive, draws=draws, rng=rng)])
        if task.balanced:
            weights = np.where(positive, weights / positive.sum(), weights / (~positive).sum())
        found.append(weights)
    return found


def measure(task: Task, scores: Sequence[Vector], weights: Sequence[Vector]) -> Figures:
    """Return the figures of one method. The same `drawn_weights` for several make them comparable in pairs.

    Args:
        scores: one vector over all samples of each data set, -inf where the method cannot score.
    """
    found = np.array([
        weighted_figures(vector[members], positive, drawn)
        for vector, members, positive, drawn in zip(scores, task.members, task.positive, weights, strict=True)
    ])  # fmt: skip
    return Figures(whole=found[:, 0], draws=found[:, 1:])


def evaluated(
    tasks: Sequence[Task], scores: Mapping[str, Sequence[Vector]], draws: int, blocks: Sequence[int] | None = None
) -> dict[str, ByTask]:
    """Return figures by method and task; all methods on the same resampled data.

    Args:
        blocks: a number per data set. Data sets with one number ask the same questions in the same order. A draw takes
            the same samples of each, and their mean counts as one data set.
    """
    found: dict[str, ByTask] = {label: {} for label in scores}
    for task in tasks:
        weights = drawn_weights(task, draws=draws, blocks=blocks)
        for label, vectors in scores.items():
            each = measure(task, vectors, weights)
            found[label][task.name] = each if blocks is None else _by_block(each, np.array(blocks))
    return found


def joined(found: Sequence[Mapping[str, ByTask]], blocks: Sequence[int]) -> dict[str, ByTask]:
    """Return the figures of several data sets, each evaluated in its block, together: of the tasks that all have."""
    return {
        label: {
            name: _by_block(
                Figures(
                    whole=np.concatenate([each[label][name].whole for each in found]),
                    draws=np.concatenate([each[label][name].draws for each in found]),
                ),
                np.array(blocks),
            )
            for name in by_task
            if all(name in each[label] for each in found)
        }
        for label, by_task in found[0].items()
    }


def _by_block(figures: Figures, blocks: npt.NDArray[np.int64]) -> Figures:
    whole, draws = (
        np.array([of[blocks == block].mean(axis=0) for block in dict.fromkeys(blocks.tolist())])
        for of in (figures.whole, figures.draws)
    )
    return Figures(whole=whole, draws=draws)


def named_estimates(found: Mapping[str, ByTask]) -> dict[str, dict[str, dict[str, Estimate]]]:
    """Return the estimates of `evaluated` by method, task and name of the figure, for JSON."""
    return {
        label: {name: dict(zip(FIGURES, estimates(figures), strict=True)) for name, figures in by_task.items()}
        for label, by_task in found.items()
    }


def estimates(figures: Figures, *, seed: int = 0) -> list[Estimate]:
    """Return means over the data sets; the interval resamples data sets and, within each, samples."""
    means = _means(figures.draws, seed)
    low, high = np.percentile(means, BOUNDS, axis=0)
    return [
        Estimate(value=float(v), low=float(a), high=float(b))
        for v, a, b in zip(figures.whole.mean(axis=0), low, high, strict=True)
    ]


def difference(first: Figures, second: Figures, *, seed: int = 0) -> Estimate:
    """Return AUROC of the first minus that of the second, on the same resampled data."""
    return estimates(Figures(whole=first.whole - second.whole, draws=first.draws - second.draws), seed=seed)[0]


def _means(draws: npt.NDArray[np.float64], seed: int) -> npt.NDArray[np.float64]:
    """Return means over data sets drawn with replacement, float64 [draws, 4]."""
    rng = np.random.default_rng((seed, 99))
    sets, count = draws.shape[:2]
    chosen = rng.integers(sets, size=(count, sets))
    return draws[chosen, np.arange(count)[:, None]].mean(axis=1)


def tasks_of(
    sources: Sequence[Sequence[str]], labels: Mapping[str, bool], groups: Mapping[str, Sequence[str]], reach: set[str]
) -> list[Task]:
    """Return the groups' tasks (kinds among themselves), then each kind's, against `reach` of the other label.

    Args:
        sources: each sample's kind, one sequence per data set.
        labels: each kind's label.
        groups: kinds by group. A task is left out where a data set has samples of one label only.
    """
    wanted = [(name, set(kinds), False) for name, kinds in groups.items()]
    wanted += [
        (kind, {kind, *(each for each in reach if labels[each] != label)}, True) for kind, label in labels.items()
    ]
    made = []
    for name, kinds, balanced in wanted:
        missing = balanced and not any(name in source for source in sources)
        if missing or len({labels[kind] for kind in kinds}) < 2:
            continue
        members = [np.flatnonzero([each in kinds for each in source]) for source in sources]
        positive = [
            np.array([labels[source[int(row)]] for row in rows]) for rows, source in zip(members, sources, strict=True)
        ]
        if any(each.all() or not each.any() for each in positive):
            continue
        made.append(Task(name=name, members=members, positive=positive, balanced=balanced))
    return made
