"""Compute all batches of all epochs in advance, from the documents' lengths, the settings and the seed.

A row is read by its place in the plan, so that resuming after a kill is a plain skip. (A sampler that reshuffles in
every epoch resumes wrongly inside a later one.)
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

import numpy as np
import polars as pl

from gateau_dagster.storage import parquet
from gateau_dagster.storage.files import Files
from gateau_dagster.training.batching import Batching, MixDocument, Row, planned_rows

PLAN_COLUMNS = ("step", "accumulation", "rank", "row", "place", "mix_row", "epoch")
"""Columns of a stored plan, one row per document: its step (counted from 1), its row's place in it, its own place in
the row (these counted from 0), and the document."""
_SHAPE = b"gateau_batch_plan"  # the footer's key for the sizes, because rows without documents have no line
_SHAPE_FIELDS = ("steps", "accumulation", "processes", "rows_per_batch", "concatenated")


@dataclass(frozen=True, kw_only=True)
class BatchPlan:
    """Rows in the order [step][accumulation][rank][row of the micro batch].

    steps: of the optimiser. accumulation: passes per step. processes: ranks that read rows of their own.
    rows_per_batch: rows of a micro batch, that is, of one rank in one pass. concatenated: the documents of a row are
    one sequence; otherwise they do not see one another.
    """

    rows: tuple[Row, ...]
    steps: int
    accumulation: int
    processes: int
    rows_per_batch: int
    concatenated: bool = False

    def __post_init__(self) -> None:
        assert len(self.rows) == self.steps * self.rows_per_step

    @property
    def rows_per_step(self) -> int:
        """Return the number of rows over all ranks and accumulation steps."""
        return self.accumulation * self.processes * self.rows_per_batch

    def step_documents(self, step: int) -> list[MixDocument]:
        """Return the documents that optimiser step `step` (counted from 1) learns from."""
        return [document for row in self.step_rows(step) for document in row]

    def step_rows(self, step: int) -> Sequence[Sequence[MixDocument]]:
        """Return the rows that optimiser step `step` (counted from 1) learns from; empty ones fill up its passes."""
        assert 1 <= step <= self.steps, step
        return self.rows[(step - 1) * self.rows_per_step : step * self.rows_per_step]

    def costs(self, lengths: Sequence[int]) -> np.ndarray:
        """Return the attention cost of each row, int64 [rows], see `row_costs`. lengths: tokens of each document."""
        rows = [[document.row for document in row] for row in self.rows]
        return row_costs(rows, lengths, concatenated=self.concatenated)


def plan_batches(
    lengths: Sequence[int],
    *,
    batching: Batching,
    epochs: float,
    max_steps: int | None,
    rows_per_batch: int,
    accumulation: int,
    processes: int,
    pack_length: int | None,
    balanced: bool,
    seed: int,
) -> BatchPlan:
    """Return every row of every step. Each epoch holds every document once; one that is cut short, at most once.

    The last step is filled with () rows, so that all ranks make the same number of passes. `batching`, `pack_length`:
    see `planned_rows`. `rows_per_batch`, `accumulation`, `processes`: see `BatchPlan`.

    Args:
        lengths: tokens of each document, in the order of the mix.
        epochs: passes over the mix, possibly a fraction; ignored with `max_steps`, optimiser steps.
        balanced: put micro batches of similar cost into the same pass, see `balanced_order`.
        seed: of the epochs' order.

    Raises:
        GateauError: a document is longer than `pack_length`.
    """
    assert lengths
    per_pass = processes * rows_per_batch
    per_step = accumulation * per_pass
    planned = planned_rows(
        lengths, batching, epochs=None if max_steps else epochs, per_pass=per_pass, pack_length=pack_length, seed=seed
    )
    rows = list(islice(planned, None if max_steps is None else max_steps * per_step))
    rows += [()] * (-len(rows) % per_step)
    shape = {"accumulation": accumulation, "processes": processes, "rows_per_batch": rows_per_batch}
    plan = BatchPlan(rows=tuple(rows), steps=len(rows) // per_step, concatenated=batching == "concatenated", **shape)
    return _balanced(plan, lengths) if balanced else plan


def _balanced(plan: BatchPlan, lengths: Sequence[int]) -> BatchPlan:
    batches = plan.accumulation * plan.processes
    order = balanced_order(plan.costs(lengths), rows_per_batch=plan.rows_per_batch, batches_per_step=batches)
    return replace(plan, rows=tuple(plan.rows[index] for index in order))


def balanced_order(costs: np.ndarray, *, rows_per_batch: int, batches_per_step: int) -> np.ndarray:
    """Return the order of rows with the micro batches of each step by falling cost; equal ones keep their order.

    Ranks that work at the same time then get micro batches of similar cost (ProLong, appendix B.3: smart batching). The
    cost of attention grows with the squared length of each document. The micro batches of a step are assigned pass by
    pass: of all orders, this one minimises the sum of the passes' longest waits. Micro batches stay intact, and so does
    the set of documents of every step. The loss is a mean over the whole step, so the update is the same. Over a whole
    step, no rank exceeds another by more than one micro batch's cost. This also helps trainings whose ranks wait for
    each other once per step.

    The most expensive come first: what does not fit into memory fails at once, and batches without documents come last.

    Args:
        costs: int64 [steps * batches_per_step * rows_per_batch], see `row_costs`.
        rows_per_batch: rows of a micro batch.
        batches_per_step: micro batches over all ranks and accumulation steps.

    Returns:
        Indices into `costs`, one per row.
    """
    steps = costs.reshape(-1, batches_per_step, rows_per_batch).sum(axis=2)
    within = np.argsort(-steps, axis=1, kind="stable")
    batches = (within + np.arange(len(steps))[:, None] * batches_per_step).reshape(-1, 1)
    return (batches * rows_per_batch + np.arange(rows_per_batch)).reshape(-1)


def row_costs(rows: Sequence[Sequence[int]], lengths: Sequence[int], *, concatenated: bool = False) -> np.ndarray:
    """Sum the squared lengths of each row's documents (indices of `lengths`), int64 [rows].

    concatenated: a row is one sequence, and costs the square of the sum.
    """
    sizes = [[lengths[document] for document in row] for row in rows]
    costs = [sum(row) ** 2 if concatenated else sum(length**2 for length in row) for row in sizes]
    return np.array(costs, dtype=np.int64)


def write_plan(plan: BatchPlan, path: Path) -> None:
    """Replace the file in one step; columns: PLAN_COLUMNS, int32.

    Raises:
        GateauError: it cannot be written.
    """
    sizes = np.array([len(row) for row in plan.rows], dtype=np.int64)
    of_row = np.repeat(np.arange(len(plan.rows)), sizes)
    per_step, per_pass = plan.rows_per_step, plan.processes * plan.rows_per_batch
    columns = {
        "step": of_row // per_step + 1,
        "accumulation": of_row % per_step // per_pass,
        "rank": of_row % per_pass // plan.rows_per_batch,
        "row": of_row % plan.rows_per_batch,
        "place": np.arange(len(of_row)) - np.repeat(np.cumsum(sizes) - sizes, sizes),
        "mix_row": [document.row for row in plan.rows for document in row],
        "epoch": [document.epoch for row in plan.rows for document in row],
    }
    table = pl.DataFrame(columns, schema=dict.fromkeys(PLAN_COLUMNS, pl.Int32))
    shape = json.dumps({name: getattr(plan, name) for name in _SHAPE_FIELDS}).encode()
    Files(str(path.parent)).write_by(path.name, lambda file: parquet.write_parquet(table, {_SHAPE: shape}, file))
