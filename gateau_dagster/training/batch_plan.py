"""All batches of all epochs, computed ahead: a function of the documents' lengths, the settings and the seed.

A row is read by its place in the plan, so that going on after a kill is a plain skip. (A sampler that reshuffles at
every epoch resumes wrongly inside a later one.)
"""

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
import polars as pl

from gateau_dagster.errors import GateauError
from gateau_dagster.storage import parquet
from gateau_dagster.storage.files import Files
from gateau_dagster.training.balance import balanced_order, row_costs
from gateau_dagster.training.batching import (
    Batching,
    Document,
    Row,
    epoch_orders,
    packed_rows,
    padded_rows,
    sorted_rows,
)
from gateau_dagster.training.packing import check_lengths

PLAN_COLUMNS = ("step", "accumulation", "rank", "row", "place", "mix_row", "epoch")
"""Of a stored plan, one line a document: its step (counted from 1), its row's place there, its own place in the row
(these counted from 0), and what stands there."""
_SHAPE = b"gateau_batch_plan"  # the footer's key for the sizes: rows without documents have no line


@dataclass(frozen=True, kw_only=True)
class BatchPlan:
    """`rows` in the order [step][accumulation][rank][row of the micro batch], as many as these four ask for."""

    rows: tuple[Row, ...]
    steps: int
    accumulation: int
    processes: int
    rows_per_batch: int

    def __post_init__(self) -> None:
        assert len(self.rows) == self.steps * self.rows_per_step

    @property
    def rows_per_step(self) -> int:
        """Over all ranks and accumulation steps."""
        return self.accumulation * self.processes * self.rows_per_batch

    def step_documents(self, step: int) -> list[Document]:
        """The documents that optimiser step `step` (counted from 1) learns from."""
        assert 1 <= step <= self.steps, step
        rows = self.rows[(step - 1) * self.rows_per_step : step * self.rows_per_step]
        return [document for row in rows for document in row]


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
    """Every row of every step. Each epoch holds every document once; one that is cut short, at most once.

    The last step is filled with () rows, so that all ranks make the same number of passes.

    Args:
        lengths: tokens of each document, in the order of the mix.
        batching: see `padded_rows`, `sorted_rows` and `packed_rows`.
        epochs: passes over the mix, possibly a fraction; ignored with `max_steps`.
        max_steps: optimiser steps.
        rows_per_batch: rows of a micro batch, that is of one rank in one pass.
        accumulation: passes of an optimiser step.
        processes: ranks.
        pack_length: tokens of a packed row; read for `packed` alone.
        balanced: micro batches of similar cost in the same pass, see balance.py.
        seed: of the epochs' order.

    Raises:
        GateauError: a document is longer than `pack_length`.
    """
    assert lengths
    per_pass = processes * rows_per_batch
    per_step = per_pass * accumulation
    if batching == "packed":
        assert pack_length is not None
        check_lengths(lengths, pack_length=pack_length)

    def all_rows() -> Iterator[Row]:
        for epoch, order in epoch_orders(len(lengths), epochs=None if max_steps is not None else epochs, seed=seed):
            if batching == "packed":
                assert pack_length is not None
                yield from packed_rows(order, epoch, lengths=lengths, pack_length=pack_length)
            elif batching == "sorted":
                yield from sorted_rows(order, epoch, lengths=lengths, per_pass=per_pass, seed=seed)
            else:
                yield from padded_rows(order, epoch)

    rows = list(islice(all_rows(), None if max_steps is None else max_steps * per_step))
    steps = math.ceil(len(rows) / per_step)
    rows += [()] * (steps * per_step - len(rows))
    if balanced:
        costs = row_costs([[each.row for each in row] for row in rows], lengths)
        order = balanced_order(costs, rows_per_batch=rows_per_batch, batches_per_step=accumulation * processes)
        rows = [rows[index] for index in order]
    return BatchPlan(
        rows=tuple(rows), steps=steps, accumulation=accumulation, processes=processes, rows_per_batch=rows_per_batch
    )


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
    shape = json.dumps([plan.steps, plan.accumulation, plan.processes, plan.rows_per_batch]).encode()
    Files(str(path.parent)).write_by(path.name, lambda file: parquet.write_parquet(table, {_SHAPE: shape}, file))


def read_plan(path: Path) -> BatchPlan:
    """What `write_plan` wrote.

    Raises:
        GateauError: there is no such file, or it is no plan.
    """
    try:
        shape = parquet.metadata(str(path)).get(_SHAPE)
        if shape is None:
            raise GateauError(f"{path} is no batch plan, or is damaged. Delete it: it is computed again.")
        table = pl.read_parquet(path, columns=list(PLAN_COLUMNS))
    except (OSError, pl.exceptions.PolarsError) as error:
        raise GateauError(
            f"the batch plan {path} cannot be read ({error}). Remove it, if it is there: it is computed again."
        ) from error
    steps, accumulation, processes, rows_per_batch = json.loads(shape)
    step, passed, rank, row, _, mix_row, epoch = (table[name].to_numpy().astype(np.int64) for name in PLAN_COLUMNS)
    of_row = (((step - 1) * accumulation + passed) * processes + rank) * rows_per_batch + row
    rows: list[list[Document]] = [[] for _ in range(steps * accumulation * processes * rows_per_batch)]
    for at, of_mix, number in zip(of_row.tolist(), mix_row.tolist(), epoch.tolist(), strict=True):
        rows[at].append(Document(row=of_mix, epoch=number))
    return BatchPlan(
        rows=tuple(map(tuple, rows)),
        steps=steps,
        accumulation=accumulation,
        processes=processes,
        rows_per_batch=rows_per_batch,
    )
