"""The plan of all batches: what is in it, in which order, in which micro batches, and that a file gives it back."""

from collections import Counter
from dataclasses import replace
from itertools import permutations, product
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateau_dagster.training import batch_plan as packing
from gateau_dagster.training.batch_plan import (
    PLAN_COLUMNS,
    Batching,
    BatchPlan,
    MixDocument,
    balanced_order,
    epoch_order,
    mix_order,
    pack,
    write_plan,
)
from gateau_dagster.training.model import imbalance, plan_statistics
from tests.kit.error_codes import refused
from tests.training.builders import make_plan, read_plan

BATCHINGS: tuple[Batching, ...] = ("padded", "sorted", "packed")
RAGGED = np.random.default_rng(0).integers(5, 65, 101).tolist()


def plan(lengths: list[int] = RAGGED, **changes: Any) -> BatchPlan:
    return make_plan(lengths, **{"accumulation": 3, "processes": 2, "pack_length": 64, "seed": 3} | changes)


def documents(found: BatchPlan) -> list[MixDocument]:
    return [document for step in range(1, found.steps + 1) for document in found.step_documents(step)]


@given(
    lengths=st.lists(st.integers(1, 64), min_size=1, max_size=40),
    batching=st.sampled_from(BATCHINGS),
    epochs=st.integers(1, 3),
    shape=st.tuples(st.integers(1, 3), st.integers(1, 3), st.integers(1, 3)),
    balanced=st.booleans(),
)
def test_every_document_once_an_epoch_in_rows_that_fit(
    lengths: list[int], batching: Batching, epochs: int, shape: tuple[int, int, int], balanced: bool
) -> None:
    sizes = dict(zip(("rows_per_batch", "accumulation", "processes"), shape, strict=True))
    found = plan(lengths, batching=batching, epochs=epochs, balanced=balanced, **sizes)
    wanted = {(epoch, row): 1 for epoch in range(epochs) for row in range(len(lengths))}
    assert Counter((each.epoch, each.row) for each in documents(found)) == wanted
    assert len(found.rows) == found.steps * np.prod(shape)
    for row in found.rows:
        assert sum(lengths[each.row] for each in row) <= 64
        assert batching == "packed" or len(row) <= 1
    for step in range(1, found.steps + 1):
        assert found.step_documents(step), "a step without documents has no loss"
    if batching == "packed" and not balanced:
        packed = [
            tuple(MixDocument(row=row, epoch=epoch) for row in rows)
            for epoch in range(epochs)
            for rows in pack(lengths, epoch_order(len(lengths), epoch=epoch, seed=3), pack_length=64)
        ]
        assert list(found.rows) == packed + [()] * (len(found.rows) - len(packed)), "filled up at the end only"


@pytest.mark.parametrize(
    ("epochs", "max_steps", "steps"), [(2.0, None, 5), (1.1, None, 3), (0.25, None, 1), (0.01, None, 1), (9.0, 4, 4)]
)
def test_padded_rows_are_the_epochs_one_after_the_other(epochs: float, max_steps: int | None, steps: int) -> None:
    count = 10
    found = plan(RAGGED[:count], epochs=epochs, max_steps=max_steps, accumulation=1)
    wanted = 4 * max_steps if max_steps else max(1, round(count * epochs))
    slow = [((row, epoch),) for epoch in range(9) for row in epoch_order(count, epoch=epoch, seed=3)][:wanted]
    slow_rows = [tuple(MixDocument(row=row, epoch=epoch) for row, epoch in each) for each in slow]
    assert found.steps == steps
    assert list(found.rows) == slow_rows + [()] * (4 * steps - wanted)


@pytest.mark.parametrize("batching", BATCHINGS)
def test_a_fraction_of_an_epoch_has_the_same_documents_however_they_are_batched(batching: Batching) -> None:
    found = documents(plan(batching=batching, epochs=1.4))
    last = sorted(each.row for each in found if each.epoch == 1)
    assert last == sorted(epoch_order(101, epoch=1, seed=3)[:40])
    assert len(found) == 141


@pytest.mark.parametrize("batching", BATCHINGS)
def test_max_steps_cuts_or_repeats(batching: Batching) -> None:
    for wanted in (1, 30):
        found = plan(batching=batching, max_steps=wanted)
        assert found.steps == wanted
        seen = Counter((each.epoch, each.row) for each in documents(found))
        assert set(seen.values()) == {1}
    assert {each.epoch for each in documents(found)} >= {0, 1}
    assert found.rows[: 3 * found.rows_per_step] == plan(batching=batching, max_steps=3).rows


def test_sorted_rows_of_a_pass_are_neighbours_in_length() -> None:
    found = plan(batching="sorted", epochs=1)
    passes = [found.rows[start : start + 4] for start in range(0, len(found.rows), 4)]
    groups = [sorted(RAGGED[each.row] for row in passed for each in row) for passed in passes]
    groups = [group for group in groups if group]
    assert sorted(groups) != groups != sorted(groups, reverse=True), "the order of the groups is random"
    by_length = sorted(groups, reverse=True)
    assert [each for group in by_length for each in reversed(group)] == sorted(RAGGED, reverse=True)
    assert [len(group) for group in by_length] == [4] * 25 + [1], "the shortest documents do not divide"
    second = plan(batching="sorted", epochs=2).rows[len(passes) * 4 :]
    assert [row for row in second if row] != [row for row in found.rows if row]


@pytest.mark.parametrize(("batching", "rows_per_batch"), product(BATCHINGS, (1, 2)))
def test_balancing_changes_no_step_and_shortens_the_waits(batching: Batching, rows_per_batch: int) -> None:
    lengths = (np.random.default_rng(5).lognormal(3, 1, 600).clip(1, 500)).astype(int).tolist()
    settings: dict[str, Any] = {"batching": batching, "pack_length": 500, "rows_per_batch": rows_per_batch}
    plain, even = (plan(lengths, balanced=balanced, accumulation=6, **settings) for balanced in (False, True))
    for step in range(1, plain.steps + 1):
        assert Counter(plain.step_documents(step)) == Counter(even.step_documents(step))
    batches = [Counter(each.rows[at : at + rows_per_batch] for at in range(0, len(each.rows), rows_per_batch))
               for each in (plain, even)]  # fmt: skip
    assert batches[0] == batches[1], "micro batches stay whole"
    before, after = (plan_statistics(each, lengths).imbalance for each in (plain, even))
    assert after <= before if batching == "sorted" else after < 0.95 * before
    assert not plan(balanced=True).rows[-1], "batches without documents come last"


@pytest.mark.parametrize("batching", BATCHINGS)
def test_the_same_settings_give_the_same_plan_and_another_seed_another(batching: Batching) -> None:
    first = plan(batching=batching, balanced=True)
    assert plan(batching=batching, balanced=True) == first
    assert plan(batching=batching, balanced=True, seed=4) != first


@pytest.mark.parametrize("batching", [*BATCHINGS, "concatenated"])
def test_a_file_gives_the_plan_back(batching: Batching, tmp_path: Path) -> None:
    found = plan(batching=batching, balanced=True)
    path = tmp_path / "deep" / "plan.parquet"
    write_plan(found, path)
    write_plan(found, path)
    assert read_plan(path) == found
    assert [each.name for each in path.parent.iterdir()] == ["plan.parquet"]
    table = pl.read_parquet(path)
    assert tuple(table.columns) == PLAN_COLUMNS
    slow = [
        (step + 1, accumulation, rank, row, place, document.row, document.epoch)
        for number, (step, accumulation, rank, row) in enumerate(
            product(range(found.steps), range(3), range(2), range(2))
        )
        for place, document in enumerate(found.rows[number])
    ]
    assert table.rows() == slow


def test_a_sequence_longer_than_a_packed_row_stops_the_training_before_it_begins() -> None:
    message = r"2 of 4 sequences do not fit into rows of training.pack_length = 64 tokens: the longest has 90\. Raise"
    with refused("training.pack_length", message):
        plan([65, 64, 3, 90], batching="packed")
    assert plan([64, 65], batching="padded").steps and plan([64, 3], batching="packed").steps
    with pytest.raises(AssertionError):
        pack([65], [0], pack_length=64)
    with pytest.raises(AssertionError):
        replace(plan(), steps=3)  # other rows than it says


def test_figures_of_a_plan() -> None:
    one, two, three = ((MixDocument(row=row, epoch=0),) for row in range(3))
    found = BatchPlan(rows=(one, two, three, ()), steps=1, accumulation=1, processes=2, rows_per_batch=2)
    figures = plan_statistics(found, [4, 10, 6], pack_length=10)
    assert (figures.steps, figures.rows, figures.empty_rows, figures.documents, figures.tokens) == (1, 3, 1, 3, 20)
    assert figures.fill_rate == pytest.approx(20 / 30)
    assert figures.padding_share == pytest.approx(1 - 20 / (2 * 10 + 2 * 6))
    assert figures.imbalance == pytest.approx(116 / ((116 + 36) / 2))
    assert figures.documents_per_step == (3, 3.0, 3)
    assert plan_statistics(found, [4, 10, 6]).fill_rate is None


def test_micro_batches_of_a_step_stay_whole_and_come_by_falling_cost() -> None:
    costs = np.array([1, 1, 5, 5, 2, 9, 0, 0, 0, 1, 7, 0, 3, 4, 3, 4])  # two steps of four batches of two rows
    order = balanced_order(costs, rows_per_batch=2, batches_per_step=4)
    assert order.tolist() == [4, 5, 2, 3, 0, 1, 6, 7, 10, 11, 12, 13, 14, 15, 8, 9]


def slow_imbalance(costs: list[int], *, processes: int) -> float:
    waits = means = 0.0
    for start in range(0, len(costs), processes):
        passed = costs[start : start + processes]
        waits += max(passed)
        means += sum(passed) / processes
    return waits / means


def test_no_other_order_of_a_step_waits_less() -> None:
    for seed in range(5):
        costs = np.random.default_rng(seed).integers(0, 50, 6) ** 2
        order = balanced_order(costs, rows_per_batch=1, batches_per_step=6)
        found = imbalance(costs[order], processes=2, rows_per_batch=1)
        assert found == pytest.approx(min(slow_imbalance(list(each), processes=2) for each in permutations(costs)))


LENGTHS = st.lists(st.integers(1, 40), min_size=1, max_size=120)


def slow_pack(lengths: list[int], order: list[int], *, pack_length: int, open_rows: int) -> list[list[int]]:
    """Best fit over the `open_rows` rows that were opened last, by looking at all of them."""
    rows: list[list[int]] = []
    for document in order:
        best = None
        for number in range(max(0, len(rows) - open_rows), len(rows)):
            room = pack_length - sum(lengths[each] for each in rows[number])
            if room >= lengths[document] and (best is None or room < best[0]):
                best = (room, number)
        if best is None:
            rows.append([document])
        else:
            rows[best[1]].append(document)
    return rows


@given(lengths=LENGTHS, open_rows=st.integers(1, 9), seed=st.integers(0, 9))
def test_it_is_the_best_fit_over_the_open_rows(lengths: list[int], open_rows: int, seed: int) -> None:
    order = np.random.default_rng(seed).permutation(len(lengths)).tolist()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packing, "OPEN_ROWS", open_rows)
        rows = pack(lengths, order, pack_length=40)
    assert rows == slow_pack(lengths, order, pack_length=40, open_rows=open_rows)
    assert sorted(document for row in rows for document in row) == list(range(len(lengths)))
    assert max(sum(lengths[document] for document in row) for row in rows) <= 40
    assert all(row for row in rows)


def test_rows_are_nearly_full_where_short_documents_are_many() -> None:
    rng = np.random.default_rng(2)
    lengths = np.where(rng.random(8000) < 0.1, rng.integers(4000, 30_000, 8000), rng.integers(50, 2000, 8000)).tolist()
    rows = pack(lengths, range(len(lengths)), pack_length=32_768)
    assert sum(lengths) / (len(rows) * 32_768) > 0.99


def test_mix_order_is_stable_under_additions() -> None:
    keys = [("long", f"id{number}") for number in range(40)]
    order = [keys[index] for index in mix_order(keys, 1)]
    assert sorted(order) == sorted(keys)
    assert order != keys
    more = [("short", "new"), *reversed(keys)]
    assert [key for key in (more[index] for index in mix_order(more, 1)) if key in keys] == order
    assert [keys[index] for index in mix_order(keys, 2)] != order


def test_epochs_differ_and_the_first_is_the_mix() -> None:
    assert epoch_order(30, epoch=0, seed=5) == list(range(30))
    second, third = (epoch_order(30, epoch=epoch, seed=5) for epoch in (1, 2))
    assert sorted(second) == sorted(third) == list(range(30))
    assert second not in (third, list(range(30)))
    assert second == epoch_order(30, epoch=1, seed=5) != epoch_order(30, epoch=1, seed=6)
