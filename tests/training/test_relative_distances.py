"""Sets of distances by intervals against all pairs of tokens, and the frequencies of a data set."""

import itertools
import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateau_dagster.training.relative_distances import (
    DistanceCounts,
    distance_edges,
    distance_intervals,
    relative_distances,
)
from gateau_dagster.training.skip_positions import Strategy, position_rng, skip_positions

STRATEGIES: tuple[Strategy, ...] = ("all", "inner", "outer")


def twin(blocks: list[int], positions: list[int]) -> set[int]:
    """The union over turns of the distances from every response token to every token up to itself."""
    union: set[int] = set()
    owners = [block for block, size in enumerate(blocks) for _ in range(size)]
    for turn in range(1, len(blocks), 2):
        of_this_turn: set[int] = set()
        for query in range(len(positions)):
            if owners[query] != turn:
                continue
            for key in range(query + 1):
                of_this_turn.add(abs(positions[query] - positions[key]))
        union |= of_this_turn
    return union


@settings(max_examples=120, deadline=None)
@given(
    blocks=st.lists(st.integers(0, 7), max_size=8),
    strategy=st.sampled_from(STRATEGIES),
    length=st.integers(1, 150),
    seed=st.integers(0, 2**32),
)
def test_intervals_hold_the_distances_of_all_pairs(
    blocks: list[int], strategy: Strategy, length: int, seed: int
) -> None:
    positions = skip_positions(
        blocks, strategy=strategy, length=length, probability=0.7, rng=np.random.default_rng(seed)
    )
    intervals = distance_intervals(blocks, positions)
    held = [distance for first, last in intervals for distance in range(first, last + 1)]
    assert set(held) == twin(blocks, positions.tolist())
    assert len(set(held)) == len(held)
    assert all(before[1] + 1 < after[0] for before, after in itertools.pairwise(intervals))


def test_a_single_turn_is_the_papers_example() -> None:
    assert distance_intervals([6, 3], np.arange(9)) == [(0, 8)]
    s = 20
    positions = np.arange(9) + np.repeat([0, s], [6, 3])
    assert distance_intervals([6, 3], positions) == [(0, 2), (s + 1, s + 8)]


def test_what_has_no_response_holds_no_distance() -> None:
    counts = DistanceCounts()
    for blocks in ([], [5], [5, 0]):
        counts.add(blocks, np.arange(sum(blocks)))
    assert counts.samples == 3
    assert counts.counts().size == 0


def test_frequencies_of_a_data_set_are_those_of_its_samples() -> None:
    rng = np.random.default_rng(3)
    samples = [(f"s{index}", rng.integers(0, 9, rng.integers(1, 7)).tolist()) for index in range(25)]
    samples.append(("longer than L", [190, 20]))
    table = relative_distances(samples, strategy="all", length=200, probability=0.6, seed=5, epoch=2)
    plain, spread = Counter[int](), Counter[int]()
    for sample_id, blocks in samples:
        generator = position_rng(5, 2, sample_id)
        positions = skip_positions(blocks, strategy="all", length=200, probability=0.6, rng=generator)
        plain.update(twin(blocks, list(range(sum(blocks)))))
        spread.update(twin(blocks, positions.tolist()))
    assert table["first"][0] == 0 and table["end"][-1] == 210
    for first, end, before, after in table.iter_rows():
        for share, counted in ((before, plain), (after, spread)):
            mean = sum(counted[distance] for distance in range(first, end)) / (end - first)
            assert math.isclose(share, mean / len(samples), rel_tol=1e-12, abs_tol=1e-15)
    assert spread.total() != plain.total()


@pytest.mark.parametrize("end", [1, 2, 99, 100, 4096, 100_000, 1_000_000])
def test_bins_cover_the_range_without_a_gap(end: int) -> None:
    edges = distance_edges(end)
    widths = np.diff(edges)
    assert edges[0] == 0 and edges[-1] == end
    assert widths.min() >= 1 and widths.max() <= max(1, end // 100)
    assert edges[: min(end, 13) + 1].tolist() == list(range(min(end, 13) + 1))
    assert len(edges) < 250


def test_an_empty_data_set_has_bins_and_no_distance() -> None:
    table = relative_distances([], strategy="outer", length=50, probability=1.0, seed=0)
    assert table["end"][-1] == 50
    assert table["before"].sum() == table["after"].sum() == 0


def test_short_turns_are_spread_over_the_whole_range() -> None:
    """Figure 2 on two turns: before, nothing beyond a sample's length; after, the rest is nearly even."""
    length = 10_000
    samples = [(f"s{index}", [60, 40, 60, 40]) for index in range(1500)]
    table = relative_distances(samples, strategy="outer", length=length, probability=0.5, seed=1)
    beyond = table.filter(table["first"] >= 200, table["end"] <= length - 200)
    assert beyond["before"].sum() == 0
    # Half the samples skip. Across the skip their second response is 61 to 199 tokens from the first turn's tokens,
    # and each of these 139 distances moves by a number drawn evenly from 1 to L - 200.
    expected = 0.5 * 139 / (length - 200)
    bins = beyond["after"].to_numpy()
    assert abs(bins.mean() / expected - 1) < 0.08
    assert bins.std() / bins.mean() < 0.3
