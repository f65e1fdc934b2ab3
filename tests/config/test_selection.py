from hypothesis import given
from hypothesis import strategies as st

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
