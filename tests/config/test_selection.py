import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from gateau_dagster.config import SelectionConfig


@given(fraction=st.floats(0.001, 1), scored=st.integers(1, 10_000))
def test_a_fraction_chooses_its_share_and_at_least_one(fraction: float, scored: int) -> None:
    chosen = SelectionConfig(fraction=fraction).chosen(scored)
    assert 1 <= chosen <= scored
    assert abs(chosen - fraction * scored) <= 1


@given(count=st.integers(1, 500), scored=st.integers(0, 500))
def test_a_count_chooses_that_many_or_all(count: int, scored: int) -> None:
    assert SelectionConfig(count=count).chosen(scored) == min(count, scored)


def test_the_default_is_the_paper_s_tenth() -> None:
    assert SelectionConfig().chosen(200) == 20
    assert SelectionConfig().chosen(3) == 1
    assert SelectionConfig().chosen(0) == 0


@given(lengths=st.lists(st.integers(-3, 400), max_size=6))
def test_segment_lengths_are_positive_and_distinct(lengths: list[int]) -> None:
    if min(lengths, default=1) >= 1 and len({*lengths}) == len(lengths):
        assert SelectionConfig(segment_lengths=lengths).segment_lengths == lengths
    else:
        with pytest.raises(ValidationError):
            SelectionConfig(segment_lengths=lengths)
