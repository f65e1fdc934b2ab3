"""What a batch plan comes to, in figures: how full its rows are, how much is padding, how evenly the ranks work."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gateau_dagster.training.batch_plan import BatchPlan


@dataclass(frozen=True, kw_only=True)
class PlanStatistics:
    """Figures of a plan.

    rows: those that hold a document. empty_rows: those that only fill up a pass. documents, tokens: over all epochs.
    fill_rate: tokens / room of `rows`, for rows of pack_length tokens. padding_share: of the tokens of a batch that is
    padded to its longest row, over all batches; empty rows count as padding. imbalance: time of all passes / what it
    would be if all ranks had the same cost, see `imbalance`. documents_per_step: least, mean and most.
    """

    steps: int
    rows: int
    empty_rows: int
    documents: int
    tokens: int
    fill_rate: float | None
    padding_share: float
    imbalance: float
    documents_per_step: tuple[int, float, int]


def plan_statistics(plan: BatchPlan, lengths: Sequence[int], *, pack_length: int | None = None) -> PlanStatistics:
    """Figures of `plan` over documents of these lengths.

    Args:
        plan: the plan.
        lengths: tokens of each document of the mix.
        pack_length: tokens of a row of several documents; None where rows hold one.
    """
    rows = [[document.row for document in row] for row in plan.rows]
    tokens = np.array([sum(lengths[document] for document in row) for row in rows], dtype=np.int64)
    held = np.array([len(row) for row in rows], dtype=np.int64)
    filled = int((held > 0).sum())
    longest = tokens.reshape(-1, plan.rows_per_batch).max(axis=1)
    padded = int(longest.sum()) * plan.rows_per_batch
    each_step = held.reshape(plan.steps, -1).sum(axis=1)
    return PlanStatistics(
        steps=plan.steps,
        rows=filled,
        empty_rows=len(rows) - filled,
        documents=int(held.sum()),
        tokens=int(tokens.sum()),
        fill_rate=None if pack_length is None else int(tokens.sum()) / (filled * pack_length),
        padding_share=1 - int(tokens.sum()) / padded,
        imbalance=imbalance(plan.costs(lengths), processes=plan.processes, rows_per_batch=plan.rows_per_batch),
        documents_per_step=(int(each_step.min()), float(each_step.mean()), int(each_step.max())),
    )


def imbalance(costs: np.ndarray, *, processes: int, rows_per_batch: int) -> float:
    """How much longer the passes take than if all ranks had the same cost: sum of maxima / sum of means, 1 at best.

    Args:
        costs: int64 [passes * processes * rows_per_batch], of the rows in the plan's order.
        processes: ranks.
        rows_per_batch: rows of a micro batch.
    """
    ranks = costs.reshape(-1, processes, rows_per_batch).sum(axis=2, dtype=np.float64)
    return float(ranks.max(axis=1).sum() / ranks.mean(axis=1).sum())
