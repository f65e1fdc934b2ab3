"""Group by group, question by question, draw by draw: what the statistics over whole matrices must find."""

import statistics
from collections.abc import Sequence

import numpy as np


def slow_total(values: Sequence[float], groups: Sequence[str], by_group: bool) -> float:
    """The mean of the groups' means, or of all questions."""
    if not by_group:
        return statistics.fmean(values)
    means = []
    for name in set(groups):
        means.append(statistics.fmean(value for value, group in zip(values, groups, strict=True) if group == name))
    return statistics.fmean(means)


def slow_variance(values: Sequence[float], groups: Sequence[str], by_group: bool) -> float:
    """Of `slow_total`, each group with two questions or more and its own draw: s² / n, over the number of groups²."""
    if not by_group:
        return statistics.variance(values) / len(values)
    found = 0.0
    for name in set(groups):
        own = [value for value, group in zip(values, groups, strict=True) if group == name]
        found += statistics.variance(own) / len(own) / len(set(groups)) ** 2
    return found


def slow_draws(values: Sequence[float], draws: int, seed: int) -> list[float]:
    """Means over as many questions, drawn with replacement, at the deviation of n - 1 in the denominator."""
    rng, count = np.random.default_rng(seed), len(values)
    mean, found = statistics.fmean(values), []
    for places in rng.integers(count, size=(draws, count)):
        drawn = statistics.fmean(values[place] for place in places)
        found.append(mean + (count / (count - 1)) ** 0.5 * (drawn - mean))
    return found


def slow_holm(p: Sequence[float]) -> list[float]:
    """The smallest level at which Holm's procedure rejects each hypothesis."""
    ordered = sorted(p)
    return [
        max(min(1.0, (len(p) - place) * ordered[place]) for place in range(ordered.index(value) + 1)) for value in p
    ]


def slow_seed_variance(trained: Sequence[Sequence[Sequence[float]]]) -> float:
    """Of totals over equally weighted questions, by two-way tables of seeds and questions, pooled; not below 0.

    What a seed adds to all questions alike is the variance of the rows' means less that of the table's residuals.
    """
    found, freedom = 0.0, 0
    for table in trained:
        seeds, questions = len(table), len(table[0])
        if seeds < 2:
            continue
        rows = [statistics.fmean(row) for row in table]
        columns = [statistics.fmean(row[place] for row in table) for place in range(questions)]
        grand = statistics.fmean(rows)
        residual = sum(
            (table[s][q] - rows[s] - columns[q] + grand) ** 2 for s in range(seeds) for q in range(questions)
        ) / ((seeds - 1) * (questions - 1))
        found += (seeds - 1) * (statistics.variance(rows) - residual / questions)
        freedom += seeds - 1
    return max(0.0, found / freedom)
