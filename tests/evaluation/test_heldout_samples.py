"""Length ranges, and which samples are held out."""

from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateau_dagster.evaluation.heldout_samples import OFFERED, Buckets, candidates, heldout_ids

SOME: dict[str, Any] = {"count": 64, "buckets": Buckets.of([4096])}


def _frames(lengths: dict[str, int]) -> tuple[pl.DataFrame, pl.DataFrame]:
    reserved = pl.DataFrame({"sample_id": list(lengths), "digest": [f"digest of {name}" for name in lengths]})
    return reserved, pl.DataFrame({"sample_id": list(lengths), "context_tokens": list(lengths.values())})


@pytest.mark.parametrize(("tokens", "label"), [(0, "0–10"), (10, "0–10"), (11, "11–2,000"), (2001, "over 2,000")])
def test_an_upper_end_belongs_to_its_range(tokens: int, label: str) -> None:
    buckets = Buckets.of([2000, 10, 10])
    assert buckets.labels[buckets.index(tokens)] == label


@given(ends=st.lists(st.integers(1, 50), min_size=1, max_size=5), tokens=st.integers(0, 60))
def test_index_is_the_count_of_ends_below(ends: list[int], tokens: int) -> None:
    buckets = Buckets.of(ends)
    assert buckets.index(tokens) == sum(end < tokens for end in set(ends))
    assert len(buckets.labels) == len(set(ends)) + 1


def test_ranges_give_alike_until_one_is_empty() -> None:
    lengths = {f"a{i}": 5 for i in range(20)} | {f"b{i}": 50 for i in range(2)} | {f"c{i}": 500 for i in range(20)}
    ids = heldout_ids(*_frames(lengths), count=8, buckets=Buckets.of([10, 100]))
    assert [sum(name[0] == letter for name in ids) for letter in "abc"] == [3, 2, 3]
    assert ids == sorted(set(ids))


def test_the_choice_does_not_depend_on_the_order_of_rows_and_hardly_on_other_samples() -> None:
    lengths = {f"s{i}": i for i in range(40)}
    wanted: dict[str, Any] = {"count": 10, "buckets": Buckets.of([20])}
    frames = _frames(lengths)
    ids = heldout_ids(*frames, **wanted)
    reserved, scores = (frame.reverse() for frame in frames)
    assert heldout_ids(reserved, scores, **wanted) == ids
    more = heldout_ids(*_frames({**lengths, "new": 5}), **wanted)
    assert len(set(ids) & set(more)) >= 9


def test_a_content_is_measured_once() -> None:
    reserved = pl.DataFrame({"sample_id": ["a", "c", "d"], "digest": ["1", "2", "2"]})
    lengths = reserved.select("sample_id", pl.lit(5).alias("context_tokens"))
    assert heldout_ids(reserved, lengths, **SOME) == ["a", "c"]


def test_samples_of_unknown_length_are_left_out() -> None:
    reserved, lengths = _frames({"a": 1, "b": 2, "c": 3})
    assert heldout_ids(reserved, lengths.filter(pl.col("sample_id") != "b"), **SOME) == ["a", "c"]


def test_candidates_are_the_first_of_what_may_be_measured() -> None:
    reserved, lengths = _frames({f"s{i}": 10 * i for i in range(200)})
    buckets = Buckets.of([10_000])
    offered = candidates(reserved, count=5)
    assert len(offered) == len(set(offered)) == OFFERED * 5
    assert candidates(reserved.reverse(), count=5) == offered
    counted = lengths.filter(pl.col("sample_id").is_in(offered))
    few, all_of_them = (heldout_ids(reserved, each, count=5, buckets=buckets) for each in (counted, lengths))
    assert few == all_of_them
