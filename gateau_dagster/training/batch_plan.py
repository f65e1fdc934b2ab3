"""Order and pack sequences into rows, and compute all batches of all epochs in advance from lengths, settings and seed.

A row is read by its place in the plan, so resuming after a kill only skips rows. (A sampler that reshuffles in every
epoch resumes wrongly inside a later epoch.)
"""

# Four ways to fill rows (`training.batching`), from the plainest to the fastest:
#
#   padded        One document per row, in the order of the mix. It is the reference: it works with every model, and
#                 every pass is as long as its longest document, so most tokens of a mixed batch are padding.
#   sorted        One document per row, like lengths together (LongAlign). Little padding, and no change of the model.
#                 Each pass then sees documents of similar length only.
#   packed        Several documents per row, each with its own attention. No padding, and rows of almost equal length.
#                 It needs a model whose attention can be kept within documents (models/training_attention.py).
#   concatenated  The same rows with one attention (SkipAlign's baseline). Documents see the ones before them.
#
# On real lengths `packed` learns from several times as many tokens per second as `padded`, and the loss is the same
# (docs/evidence/benchmarks.md). Tiny models gain nothing.
#
# `pack` is best fit: a document goes to the open row with the least room that holds it. It costs O(log OPEN_ROWS) per
# document, and keeps documents near their place in the order. Packing the whole epoch by decreasing length would
# hardly fill rows better, and would put all long documents into the first steps.
#
# The whole plan is in memory, one small object per document and epoch. A sampler would need less memory, but could not
# find its place in a later epoch again after a kill.

import hashlib
import json
import math
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Literal

import numpy as np
import polars as pl

from gateau_dagster.errors import GateauError
from gateau_dagster.storage import parquet
from gateau_dagster.storage.files import Files

OPEN_ROWS = 64
"""Most rows that are open for more documents. More would hardly fill rows better, and move documents farther."""
Batching = Literal["padded", "sorted", "packed", "concatenated"]
"""Rows of one document, in the given order or grouped by similar length; rows of several documents that do not attend
to each other; and rows of several documents as one sequence (PackedSFT-k in SkipAlign, 3.1)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MixDocument:
    """One sequence to train on: `row` of the mix in the order of `position`, and the epoch, counted from 0."""

    row: int
    epoch: int


Row = tuple[MixDocument, ...]
"""The documents of one row of tokens, in order; () has no token to learn and fills up a pass."""


def planned_rows(
    lengths: Sequence[int],
    batching: Batching,
    *,
    epochs: float | None,
    per_pass: int,
    pack_length: int | None,
    seed: int,
) -> Iterator[Row]:
    """Yield the rows of all epochs.

    Args:
        lengths: tokens of each document.
        batching: see `Batching`.
        epochs, seed: see `epoch_orders`.
        per_pass: number of rows that all ranks process in one pass.
        pack_length: tokens of a row of several documents; ignored for rows of one document.

    Raises:
        GateauError: a document is longer than such a row.
    """
    if batching in {"packed", "concatenated"}:
        assert pack_length is not None
        longest, too_long = max(lengths), sum(length > pack_length for length in lengths)
        if too_long:  # documents are never cut for packing
            raise GateauError(
                "training.pack_length",
                f"{too_long} of {len(lengths)} sequences do not fit into rows of training.pack_length = {pack_length} "
                f"tokens: the longest has {longest}. Raise training.pack_length, or lower training.max_length.",
            )
    for epoch, order in epoch_orders(len(lengths), epochs=epochs, seed=seed):
        if batching == "padded":
            yield from padded_rows(order, epoch)
        elif batching == "sorted":
            yield from sorted_rows(order, epoch, lengths=lengths, per_pass=per_pass, seed=seed)
        else:
            assert pack_length is not None
            for row in pack(lengths, order, pack_length=pack_length):
                yield tuple(MixDocument(row=each, epoch=epoch) for each in row)


def padded_rows(order: Sequence[int], epoch: int) -> Iterator[Row]:
    """Yield rows of one document, in the given order."""
    return ((MixDocument(row=each, epoch=epoch),) for each in order)


def sorted_rows(order: Sequence[int], epoch: int, *, lengths: Sequence[int], per_pass: int, seed: int) -> Iterator[Row]:
    """Yield rows of one document, with documents of similar length in each pass (LongAlign's sorted batching).

    Documents are sorted by length and divided into groups of `per_pass`, the rows that all ranks process in one pass.
    The groups come in random order. If the documents do not divide evenly, () rows fill up the group of the shortest
    ones, so that no document is left out.
    """
    longest_first = sorted(order, key=lambda each: -lengths[each])
    groups = [longest_first[start : start + per_pass] for start in range(0, len(order), per_pass)]
    for number in mix_order([("batch", f"{epoch}/{number}") for number in range(len(groups))], seed):
        yield from padded_rows(groups[number], epoch)
        yield from [()] * (per_pass - len(groups[number]))


def pack(lengths: Sequence[int], order: Iterable[int], *, pack_length: int) -> list[list[int]]:
    """Pack whole documents into rows, each document once.

    Args:
        lengths: tokens of each document, all between 1 and `pack_length`.
        order: the documents (indices of `lengths`) in input order.
        pack_length: tokens of a row, at most.

    Returns:
        The documents of each row, in input order.
    """
    rows: list[list[int]] = []
    room: list[int] = []  # free tokens of each row, open or closed
    open_rows: deque[int] = deque()  # the oldest first
    by_room: list[tuple[int, int]] = []  # (room, row) of the open rows, sorted
    for document in order:
        length = lengths[document]
        assert 0 < length <= pack_length, (document, length)
        place = bisect_left(by_room, (length, -1))
        if place < len(by_room):
            _, row = by_room.pop(place)
        else:
            row = len(rows)
            rows.append([])
            room.append(pack_length)
            open_rows.append(row)
        rows[row].append(document)
        room[row] -= length
        insort(by_room, (room[row], row))
        # Close the oldest row, however empty it is: no document is then more than OPEN_ROWS rows from its place in the
        # order.
        if len(open_rows) > OPEN_ROWS:
            oldest = open_rows.popleft()
            del by_room[bisect_left(by_room, (room[oldest], oldest))]
    return rows


def epoch_orders(count: int, *, epochs: float | None, seed: int) -> Iterator[tuple[int, list[int]]]:
    """Yield each epoch with its documents in order: the order of the mix first, reshuffled in every later epoch.

    Args:
        count: number of documents.
        epochs: possibly a fraction: documents are rounded, at least one; None for endless epochs.
        seed: seed of the order.
    """
    wanted = math.inf if epochs is None else max(1, round(count * epochs))
    epoch = 0
    while wanted > epoch * count:
        order = epoch_order(count, epoch=epoch, seed=seed)
        yield epoch, order[: int(min(count, wanted - epoch * count))]
        epoch += 1


def epoch_order(count: int, *, epoch: int, seed: int) -> list[int]:
    """Return rows 0..count-1 in the order of `epoch`: the order of the mix first, reshuffled in every later epoch."""
    if epoch == 0:
        return list(range(count))
    return sorted(range(count), key=lambda row: _place("epoch", seed, epoch, row))


def mix_order(keys: Sequence[tuple[str, str]], seed: int) -> list[int]:
    """Return the indices of `keys` (origin, sample_id) shuffled by hash: adding keys does not reorder the others."""
    return sorted(range(len(keys)), key=lambda index: _place("mix", seed, *keys[index]))


def _place(*key: object) -> bytes:
    # A hash and not a shuffle: a new document moves no others, and no release of a library changes the order.
    return hashlib.sha256("/".join(str(part) for part in key).encode("utf-8", errors="surrogatepass")).digest()


PLAN_COLUMNS = ("step", "accumulation", "rank", "row", "place", "mix_row", "epoch")
"""Columns of a stored plan, one row per document: its step (counted from 1), its row's place in it, its own place in
the row (these counted from 0), and the document."""
_SHAPE = b"gateau_batch_plan"  # the footer's key for the sizes, because rows without documents have no line
_SHAPE_FIELDS = ("steps", "accumulation", "processes", "rows_per_batch", "concatenated")


@dataclass(frozen=True, kw_only=True)
class BatchPlan:
    """Rows in the order [step][accumulation][rank][row of the micro batch].

    steps: number of optimiser steps. accumulation: passes per step. processes: ranks that read different rows.
    rows_per_batch: rows of a micro batch, which is one rank's part of a pass. concatenated: whether the documents of a
    row are one sequence; otherwise they do not attend to each other.
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
        """Return the documents of optimiser step `step` (counted from 1)."""
        return [document for row in self.step_rows(step) for document in row]

    def step_rows(self, step: int) -> Sequence[Sequence[MixDocument]]:
        """Return the rows of optimiser step `step` (counted from 1), including empty rows that fill up its passes."""
        assert 1 <= step <= self.steps, step
        return self.rows[(step - 1) * self.rows_per_step : step * self.rows_per_step]

    def costs(self, lengths: Sequence[int]) -> np.ndarray:
        """Return the attention cost of each row, int64 [rows], in squared tokens.

        It is the sum of the squared lengths of its documents or, if `concatenated`, the squared length of the row.
        lengths: tokens of each document.
        """
        # Attention only: packed rows hold almost equal numbers of tokens, so the linear part of their costs hardly
        # differs.
        sizes = [[lengths[document.row] for document in row] for row in self.rows]
        costs = [sum(row) ** 2 if self.concatenated else sum(length**2 for length in row) for row in sizes]
        return np.array(costs, dtype=np.int64)


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
    """Return every row of every step. Each epoch has every document once; an incomplete epoch, at most once.

    The last step is filled with () rows, so that all ranks make the same number of passes. `batching`, `pack_length`:
    see `planned_rows`. `rows_per_batch`, `accumulation`, `processes`: see `BatchPlan`.

    Args:
        lengths: tokens of each document, in the order of the mix.
        epochs: passes over the mix, possibly a fraction; ignored with `max_steps`, optimiser steps.
        balanced: whether to put micro batches of similar cost into the same pass, see `balanced_order`.
        seed: seed of the order in each epoch.

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
    if not balanced:
        return plan
    batches = accumulation * processes
    order = balanced_order(plan.costs(lengths), rows_per_batch=rows_per_batch, batches_per_step=batches)
    return replace(plan, rows=tuple(plan.rows[index] for index in order))


def balanced_order(costs: np.ndarray, *, rows_per_batch: int, batches_per_step: int) -> np.ndarray:
    """Return the order of rows with the micro batches of each step by decreasing cost; equal costs keep their order.

    Ranks then process micro batches of similar cost at the same time (ProLong, appendix B.3: smart batching). The cost
    of attention grows with the squared length of each document. The micro batches of a step are assigned pass by pass:
    of all orders, this one minimises the sum of the longest waits of the passes. Micro batches and the set of documents
    of every step stay the same. The loss is a mean over the whole step, so the update is the same. Over a whole step,
    the ranks' costs differ by at most one micro batch. This also helps if ranks wait for each other once per step.

    The most expensive micro batches come first, so one that does not fit into memory fails at once. Batches without
    documents come last.

    Args:
        costs: int64 [steps * batches_per_step * rows_per_batch], see `BatchPlan.costs`.
        rows_per_batch: rows of a micro batch.
        batches_per_step: micro batches over all ranks and accumulation steps.

    Returns:
        Indices into `costs`, one per row.
    """
    steps = costs.reshape(-1, batches_per_step, rows_per_batch).sum(axis=2)
    within = np.argsort(-steps, axis=1, kind="stable")
    batches = (within + np.arange(len(steps))[:, None] * batches_per_step).reshape(-1, 1)
    return (batches * rows_per_batch + np.arange(rows_per_batch)).reshape(-1)


def write_plan(plan: BatchPlan, path: Path) -> None:
    """Replace the file in one step; columns: PLAN_COLUMNS, int32.

    Raises:
        GateauError: the file cannot be written.
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
