"""Documents in order, and packed into rows."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateau_dagster.training import batching as packing
from gateau_dagster.training.batching import OPEN_ROWS, check_lengths, epoch_order, mix_order, pack
from tests.error_codes import refused

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


@given(lengths=LENGTHS)
def test_every_document_once_and_no_row_too_long(lengths: list[int]) -> None:
    rows = pack(lengths, range(len(lengths)), pack_length=40)
    assert sorted(document for row in rows for document in row) == list(range(len(lengths)))
    assert max(sum(lengths[document] for document in row) for row in rows) <= 40
    assert all(row for row in rows)


def test_documents_move_no_farther_than_the_open_rows() -> None:
    """A row that is opened after a document came in has none that came before it."""
    lengths = np.random.default_rng(1).integers(1, 101, 5000).tolist()
    rows = pack(lengths, range(len(lengths)), pack_length=100)
    firsts = [row[0] for row in rows]
    assert firsts == sorted(firsts)
    for number, row in enumerate(rows[:-OPEN_ROWS]):
        assert row[-1] < firsts[number + OPEN_ROWS]


def test_rows_are_nearly_full_where_short_documents_are_many() -> None:
    rng = np.random.default_rng(2)
    lengths = np.where(rng.random(8000) < 0.1, rng.integers(4000, 30_000, 8000), rng.integers(50, 2000, 8000)).tolist()
    rows = pack(lengths, range(len(lengths)), pack_length=32_768)
    assert sum(lengths) / (len(rows) * 32_768) > 0.99


def test_a_document_that_fits_into_no_row_is_named_with_its_cure() -> None:
    check_lengths([3, 64], pack_length=64)
    message = r"2 of 3 sequences do not fit into rows of training.pack_length = 64 tokens: the longest has 90\. Raise"
    with refused("training.pack_length", message):
        check_lengths([65, 3, 90], pack_length=64)
    with pytest.raises(AssertionError):
        pack([65], [0], pack_length=64)


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
