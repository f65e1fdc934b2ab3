"""Length ranges, and which samples are held out."""

from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateau_dagster.errors import GateauError
from gateau_dagster.evaluation.heldout_samples import OFFERED, Buckets, candidates, heldout_ids

SOME: dict[str, Any] = {"count": 64, "buckets": Buckets.of([4096])}


def _frames(lengths: dict[str, int], selected: list[str]) -> tuple[pl.DataFrame, pl.DataFrame, pl.DataFrame]:
    raw = pl.DataFrame({"sample_id": list(lengths), "digest": [f"digest of {name}" for name in lengths]})
    scores = pl.DataFrame({"sample_id": list(lengths), "context_tokens": list(lengths.values())})
    return raw, scores, raw.filter(pl.col("sample_id").is_in(selected))


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
    ids = heldout_ids(*_frames(lengths, ["a0"]), count=8, buckets=Buckets.of([10, 100]))
    assert [sum(name[0] == letter for name in ids) for letter in "abc"] == [3, 2, 3]
    assert "a0" not in ids
    assert ids == sorted(set(ids))


def test_the_choice_does_not_depend_on_the_order_of_rows_and_hardly_on_other_samples() -> None:
    lengths = {f"s{i}": i for i in range(40)}
    wanted: dict[str, Any] = {"count": 10, "buckets": Buckets.of([20])}
    frames = _frames(lengths, ["s3"])
    ids = heldout_ids(*frames, **wanted)
    raw, scores, selected = (frame.reverse() for frame in frames)
    assert heldout_ids(raw, scores, selected, **wanted) == ids
    more = heldout_ids(*_frames({**lengths, "new": 5}, ["s3"]), **wanted)
    assert len(set(ids) & set(more)) >= 9


def test_the_content_of_a_selected_sample_is_not_held_out_under_another_id() -> None:
    raw = pl.DataFrame({"sample_id": ["a", "b", "c", "d"], "digest": ["1", "1", "2", "2"]})
    scores = raw.select("sample_id", pl.lit(5).alias("context_tokens"))
    ids = heldout_ids(raw, scores, raw.filter(pl.col("sample_id") == "b"), **SOME)
    assert ids == ["c"]  # and the same content is not measured twice


def test_samples_without_a_score_are_not_held_out() -> None:
    raw, scores, selected = _frames({"a": 1, "b": 2, "c": 3}, ["a"])
    assert heldout_ids(raw, scores.filter(pl.col("sample_id") != "b"), selected, **SOME) == ["c"]


def test_nothing_left_names_the_cure() -> None:
    with pytest.raises(GateauError, match=r"Lower selection\.fraction"):
        heldout_ids(*_frames({"a": 1, "b": 2}, ["a", "b"]), **SOME)


def test_candidates_are_the_first_of_what_may_be_held_out() -> None:
    lengths = {f"s{i}": 10 * i for i in range(200)}
    raw, scores, selected = _frames(lengths, ["s0", "s1"])
    buckets = Buckets.of([10_000])
    offered = candidates(raw, selected, count=5)
    assert len(offered) == len(set(offered)) == OFFERED * 5 and not {"s0", "s1"} & set(offered)
    assert candidates(raw.reverse(), selected, count=5) == offered
    counted = scores.filter(pl.col("sample_id").is_in(offered))
    few, all_of_them = (heldout_ids(raw, each, selected, count=5, buckets=buckets) for each in (counted, scores))
    assert few == all_of_them
