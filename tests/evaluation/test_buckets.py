"""Length ranges, and which samples are held out."""

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateau_dagster.config import HeldoutConfig
from gateau_dagster.errors import GateauError
from gateau_dagster.evaluation.heldout import OFFERED, Buckets, candidates, heldout_ids


def _frames(lengths: dict[str, int], selected: list[str]) -> tuple[pl.DataFrame, pl.DataFrame, pl.DataFrame]:
    raw = pl.DataFrame({"sample_id": list(lengths), "digest": [f"digest of {name}" for name in lengths]})
    scores = pl.DataFrame({"sample_id": list(lengths), "context_tokens": list(lengths.values())})
    return raw, scores, raw.filter(pl.col("sample_id").is_in(selected))


@pytest.mark.parametrize(("tokens", "label"), [(0, "0–10"), (10, "0–10"), (11, "11–2,000"), (2001, "over 2,000")])
def test_an_upper_end_belongs_to_its_range(tokens: int, label: str) -> None:
    buckets = Buckets.of(HeldoutConfig(buckets=[2000, 10, 10]))
    assert buckets.labels[buckets.index(tokens)] == label


@given(ends=st.lists(st.integers(1, 50), min_size=1, max_size=5), tokens=st.integers(0, 60))
def test_index_is_the_count_of_ends_below(ends: list[int], tokens: int) -> None:
    buckets = Buckets.of(HeldoutConfig(buckets=ends))
    assert buckets.index(tokens) == sum(end < tokens for end in set(ends))
    assert len(buckets.labels) == len(set(ends)) + 1


def test_ranges_give_alike_until_one_is_empty() -> None:
    lengths = {f"a{i}": 5 for i in range(20)} | {f"b{i}": 50 for i in range(2)} | {f"c{i}": 500 for i in range(20)}
    ids = heldout_ids(*_frames(lengths, ["a0"]), HeldoutConfig(samples=8, buckets=[10, 100]))
    assert [sum(name[0] == letter for name in ids) for letter in "abc"] == [3, 2, 3]
    assert "a0" not in ids
    assert ids == sorted(set(ids))


def test_the_choice_does_not_depend_on_the_order_of_rows_and_hardly_on_other_samples() -> None:
    lengths = {f"s{i}": i for i in range(40)}
    config = HeldoutConfig(samples=10, buckets=[20])
    frames = _frames(lengths, ["s3"])
    ids = heldout_ids(*frames, config)
    raw, scores, selected = (frame.reverse() for frame in frames)
    assert heldout_ids(raw, scores, selected, config) == ids
    more = heldout_ids(*_frames({**lengths, "new": 5}, ["s3"]), config)
    assert len(set(ids) & set(more)) >= 9


def test_the_content_of_a_selected_sample_is_not_held_out_under_another_id() -> None:
    raw = pl.DataFrame({"sample_id": ["a", "b", "c", "d"], "digest": ["1", "1", "2", "2"]})
    scores = raw.select("sample_id", pl.lit(5).alias("context_tokens"))
    ids = heldout_ids(raw, scores, raw.filter(pl.col("sample_id") == "b"), HeldoutConfig())
    assert ids == ["c"]  # and the same content is not measured twice


def test_samples_without_a_score_are_not_held_out() -> None:
    raw, scores, selected = _frames({"a": 1, "b": 2, "c": 3}, ["a"])
    assert heldout_ids(raw, scores.filter(pl.col("sample_id") != "b"), selected, HeldoutConfig()) == ["c"]


def test_nothing_left_names_the_cure() -> None:
    with pytest.raises(GateauError, match=r"Lower selection\.fraction"):
        heldout_ids(*_frames({"a": 1, "b": 2}, ["a", "b"]), HeldoutConfig())


def test_candidates_are_the_first_of_what_may_be_held_out() -> None:
    lengths = {f"s{i}": 10 * i for i in range(200)}
    raw, scores, selected = _frames(lengths, ["s0", "s1"])
    config = HeldoutConfig(samples=5, buckets=[10_000])
    offered = candidates(raw, selected, config)
    assert len(offered) == len(set(offered)) == OFFERED * 5 and not {"s0", "s1"} & set(offered)
    assert candidates(raw.reverse(), selected, config) == offered
    counted = scores.filter(pl.col("sample_id").is_in(offered))
    assert heldout_ids(raw, counted, selected, config) == heldout_ids(raw, scores, selected, config)
