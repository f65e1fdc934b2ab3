import math

import numpy as np
import pytest

from gateau_dagster.selection.far_gain import Segmented, far_gain, in_full_sight, near_segments
from tests.selection.slow import slow_far_gains, slow_near_segments


def segmented(contexts: list[int], visible: list[int], perplexities: list[list[float]], length: int = 8) -> Segmented:
    return Segmented(
        context_tokens=np.array(contexts, dtype=np.int64),
        visible_tokens=np.array(visible, dtype=np.int64),
        segments=np.array([len(values) for values in perplexities], dtype=np.int64),
        segment_perplexity=np.array([value for values in perplexities for value in values]),
        segment_length=length,
    )


@pytest.mark.parametrize("length", [5, 8])
def test_near_are_the_segments_with_a_token_in_sight(length: int) -> None:
    contexts = [40, 37, 41, 12, 16, 3, 80]
    visible = [10, 16, 17, 12, 1, 3, 24]
    counts = [math.ceil(context / length) for context in contexts]
    found = near_segments(segmented(contexts, visible, [[2.0] * count for count in counts], length))
    wanted = [slow_near_segments(*pair, length) for pair in zip(contexts, visible, strict=True)]
    assert found.tolist() == wanted


def test_only_the_last_segment_is_near_where_theta_a_saw_everything() -> None:
    assert near_segments(segmented([40, 8, 0], [40, 8, 0], [[2.0] * 5, [2.0], []])).tolist() == [1, 1, 0]


def test_gain_is_the_best_far_probability_less_the_best_near_one() -> None:
    measures = segmented(
        [32, 32, 32],
        [16, 16, 16],
        [[4.0, 2.0, 8.0, 5.0], [4.0, 4.0, 2.0, 8.0], [1.0, 9.0, 9.0, 9.0]],
    )
    assert far_gain(measures).tolist() == pytest.approx([1 / 2 - 1 / 5, 0.0, 1 - 1 / 9], rel=1e-12)


def test_a_sample_in_full_sight_gains_nothing() -> None:
    gains = far_gain(segmented([32, 16], [16, 16], [[1.0, 9.0, 9.0, 9.0], [1.0, 9.0]]))
    assert gains.tolist() == pytest.approx([1 - 1 / 9, 0.0], rel=1e-12)


def test_below_two_segments_there_is_nothing_to_compare() -> None:
    gains = far_gain(segmented([32, 8, 0], [16, 8, 0], [[1.0, 9.0, 9.0, 9.0], [2.0], []]))
    assert np.isnan(gains).tolist() == [False, True, True]


def test_a_context_that_theta_a_did_not_see_at_all_is_far() -> None:
    gains = far_gain(segmented([16, 32], [0, 16], [[2.0, 4.0], [2.0, 2.0, 2.0, 2.0]]))
    assert gains.tolist() == [0.5, 0.0]


def test_the_unit_of_perplexity_does_not_matter_for_the_order_of_noise() -> None:
    """Segments that all predict badly differ by little, however far their perplexities are apart."""
    (gain,) = far_gain(segmented([32], [8], [[2000.0, 3000.0, 9000.0, 5000.0]]))
    assert 0 < gain < 1e-3


@pytest.mark.parametrize("full", [False, True])
def test_all_samples_at_once_are_as_one_by_one(full: bool) -> None:
    rng = np.random.default_rng(5)
    contexts = rng.integers(0, 80, 300).tolist()
    visible = contexts if full else [min(context, int(rng.choice([1, 5, 16, 99]))) for context in contexts]
    perplexities = [rng.uniform(1, 9, -(-context // 8)).tolist() for context in contexts]
    found = far_gain(segmented(contexts, visible, perplexities))
    wanted = slow_far_gains(contexts, visible, perplexities, 8)
    np.testing.assert_array_equal(found, wanted)
    assert (found > 0).any() and (found == 0).any() and np.isnan(found).any()


def test_samples_in_full_sight_among_others_are_near_as_a_whole() -> None:
    contexts, perplexities = [16, 24, 8], [[1.0, 9.0], [2.0, 3.0, 4.0], [5.0]]
    alone = far_gain(segmented(contexts, contexts, perplexities))
    among = far_gain(segmented([*contexts, 80], [*contexts, 8], [*perplexities, [1.0] * 10]))
    np.testing.assert_array_equal(in_full_sight(alone), among[:3])
