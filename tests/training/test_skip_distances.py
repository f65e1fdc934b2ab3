"""The law of the distances that skips give, by statistical tests; skip_positions.py states it."""

import math

import numpy as np
import pytest
from scipy.stats import chisquare, kstest

from gateau_dagster.training.skip_positions import Strategy, position_rng, skip_positions

LEVEL = 1e-3
"""Level of the tests. The draws are seeded: a test that passes always passes."""


def draws(blocks: list[int], strategy: Strategy, length: int, *, count: int, probability: float = 1.0) -> np.ndarray:
    """Positions of `count` samples of the same shape, int64 [count, sum(blocks)]."""
    rows = [
        skip_positions(
            blocks, strategy=strategy, length=length, probability=probability, rng=position_rng(11, 0, str(sample))
        )
        for sample in range(count)
    ]
    return np.stack(rows)


def single_skip_law(instruction: int, response: int, length: int) -> np.ndarray:
    """Probability of each distance 0..length-1 between a random response token and a random instruction token."""
    law = np.zeros(length)
    largest = length - instruction - response
    for token in range(instruction):
        for answer in range(response):
            delta = instruction + answer - token
            for s in range(1, largest + 1):
                law[delta + s] += 1 / (instruction * response * largest)
    return law


@pytest.mark.parametrize(("blocks", "strategy"), [([30, 10], "inner"), ([30, 10], "all"), ([20, 10, 10], "outer")])
def test_distances_across_one_skip_fill_the_range_evenly(blocks: list[int], strategy: Strategy) -> None:
    """A pair of tokens δ apart: uniform on {δ + 1, ..., δ + M}, by chi-square over 40 bins."""
    length, count = 1000, 4000
    room = length - sum(blocks)
    positions = draws(blocks, strategy, length, count=count)
    for far, near in ((0, 39), (17, 33), (29, 30)):
        distances = positions[:, near] - positions[:, far]
        delta = near - far
        assert delta + 1 <= distances.min() and distances.max() <= delta + room < length
        observed, _ = np.histogram(distances, bins=np.arange(delta + 1, delta + room + 2, room // 40))
        assert len(observed) == 40 and observed.sum() == count
        assert chisquare(observed).pvalue > LEVEL


def test_all_pairs_together_are_flat_but_for_a_sample_s_length_at_both_ends() -> None:
    instruction, response, length, count = 30, 10, 1000, 4000
    law = single_skip_law(instruction, response, length)
    middle = law[instruction + response : length - instruction - response]
    np.testing.assert_allclose(middle, 1 / (length - instruction - response), rtol=1e-12)
    assert math.isclose(law.sum(), 1.0)
    positions = draws([instruction, response], "inner", length, count=count)
    rng = np.random.default_rng(5)
    rows = np.arange(count)
    near = positions[rows, rng.integers(instruction, instruction + response, count)]
    distances = near - positions[rows, rng.integers(0, instruction, count)]
    edges = np.arange(0, length + 1, 20)
    observed, _ = np.histogram(distances, bins=edges)
    expected = count * np.add.reduceat(law, edges[:-1])
    assert expected.min() > 5
    assert chisquare(observed, expected).pvalue > LEVEL


def product_of_uniforms(k: int, x: np.ndarray) -> np.ndarray:
    """P(U_1 ... U_k <= x) = x Σ_{j<k} (-ln x)^j / j!."""
    x = np.maximum(x, 1e-300)
    return x * sum((-np.log(x)) ** j / math.factorial(j) for j in range(k))


def test_later_skips_shrink_and_their_sum_piles_up_near_l() -> None:
    """Eq. 3 draws one skip after the other: each is a product of uniforms of what was free, none but the first even."""
    blocks, length, count = [1] * 6, 2_000_006, 3000
    room = length - sum(blocks)
    skips = np.diff(draws(blocks, "all", length, count=count), axis=1) - 1
    for k in range(1, 6):
        share, left = skips[:, k - 1] / room, 1 - skips[:, :k].sum(axis=1) / room
        for values in (share, left):
            assert kstest(values, lambda x, k=k: product_of_uniforms(k, x)).pvalue > LEVEL
            assert (kstest(values, "uniform").pvalue > LEVEL) == (k == 1)
        error = math.sqrt((3.0**-k - 4.0**-k) / count)
        assert abs(share.mean() - 2.0**-k) < 4 * error


def test_each_block_skips_with_its_probability() -> None:
    positions = draws([2, 1, 2, 1, 2, 1], "outer", 10**9, count=4000, probability=0.3)
    skipped = np.diff(positions, axis=1) > 1
    assert not skipped[:, [0, 1, 3, 4, 6, 7]].any()
    counts = np.bincount(skipped[:, [2, 5]].sum(axis=1), minlength=3)
    assert chisquare(counts, 4000 * np.array([0.49, 0.42, 0.09])).pvalue > LEVEL
