"""Ranks that work at the same time get micro batches of similar cost (ProLong, appendix B.3: smart batching).

The cost of attention grows with the squared length of each document. The micro batches of a step are sorted by the sum
of it and dealt out pass by pass: of all orders, this one makes the sum of the passes' longest waits least. A micro
batch stays what it was, and so does the set of documents of every step: the loss is a mean over the whole step, and the
update is the same.

Over a whole step, no rank has more than one micro batch's cost above another: so it helps trainings whose ranks wait
for each other once a step, too.
"""

from collections.abc import Sequence

import numpy as np


def row_costs(rows: Sequence[Sequence[int]], lengths: Sequence[int], *, concatenated: bool = False) -> np.ndarray:
    """Sum of the squared lengths of each row's documents (indices of `lengths`), int64 [rows].

    concatenated: a row is one sequence, and costs the square of the sum.
    """
    sizes = [[lengths[document] for document in row] for row in rows]
    costs = [sum(row) ** 2 if concatenated else sum(length**2 for length in row) for row in sizes]
    return np.array(costs, dtype=np.int64)


def balanced_order(costs: np.ndarray, *, rows_per_batch: int, batches_per_step: int) -> np.ndarray:
    """The rows, with the micro batches of each step by falling cost; equal ones in the order they have.

    The dearest come first: what does not fit into memory fails at once, and batches without documents come last.

    Args:
        costs: int64 [steps * batches_per_step * rows_per_batch], see `row_costs`.
        rows_per_batch: rows of a micro batch.
        batches_per_step: micro batches over all ranks and accumulation steps.

    Returns:
        Indices into `costs`, as many.
    """
    steps = costs.reshape(-1, batches_per_step, rows_per_batch).sum(axis=2)
    within = np.argsort(-steps, axis=1, kind="stable")
    batches = (within + np.arange(len(steps))[:, None] * batches_per_step).reshape(-1, 1)
    return (batches * rows_per_batch + np.arange(rows_per_batch)).reshape(-1)


def imbalance(costs: np.ndarray, *, processes: int, rows_per_batch: int) -> float:
    """How much longer the passes take than if all ranks had the same cost: sum of maxima / sum of means, 1 at best.

    Args:
        costs: int64 [passes * processes * rows_per_batch], of the rows in the plan's order.
        processes: ranks.
        rows_per_batch: rows of a micro batch.
    """
    ranks = costs.reshape(-1, processes, rows_per_batch).sum(axis=2, dtype=np.float64)
    return float(ranks.max(axis=1).sum() / ranks.mean(axis=1).sum())
