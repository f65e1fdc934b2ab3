"""Eq. 2-4 of SkipAlign against a twin that follows them block by block, and what its draws depend on."""

import itertools
import math
import subprocess
import sys
from collections import Counter
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy.stats import kstest

from gateau_dagster.training.skip_positions import (
    Strategy,
    copy_numbers,
    distance_edges,
    distance_intervals,
    position_rng,
    relative_distances,
    skip_positions,
)

STRATEGIES: tuple[Strategy, ...] = ("all", "inner", "outer")
DIALOGUES = st.lists(st.integers(0, 12), max_size=9)
SETTINGS = {
    "blocks": DIALOGUES,
    "strategy": st.sampled_from(STRATEGIES),
    "length": st.integers(1, 400),
    "probability": st.floats(0, 1) | st.sampled_from([0.0, 0.5, 1.0]),
    "seed": st.integers(0, 2**32),
}


def twin(blocks: list[int], strategy: Strategy, length: int, probability: float, rng: np.random.Generator) -> list[int]:
    """Eq. 2-4 with plain loops: c_i is the list of a block's positions, u_i its bias, s_i its skip."""
    m = sum(blocks)
    c: list[list[int]] = []
    for size in blocks:
        start = sum(len(block) for block in c)
        c.append([start + token for token in range(size)])
    u: list[int] = []
    for i in range(len(c)):
        if i == 0:
            u.append(0)
            continue
        accumulated = u[i - 1]
        response = i % 2 == 1  # c_1, c_3, ... of the paper are the instructions; here c[0], c[2], ...
        do_skip = {"all": True, "inner": response, "outer": not response}[strategy]
        largest = length - m - accumulated
        if do_skip and c[i] and largest >= 1:
            epsilon = 1.0 - rng.random()
            if epsilon <= probability:
                s = int(rng.integers(1, largest + 1))
                assert 1 <= s <= length - m - accumulated  # Eq. 3
                u.append(accumulated + s)  # Eq. 4, the indicator is 1
                continue
        u.append(accumulated)
    return [position + u[i] for i in range(len(c)) for position in c[i]]  # Eq. 2


ROOM_FOR_ONE: dict[str, Any] = {"blocks": [4, 3, 2, 1], "length": 11, "probability": 1.0, "seed": 0}


@settings(max_examples=250, deadline=None)
@given(**SETTINGS)
@example(strategy="all", **ROOM_FOR_ONE)
@example(strategy="inner", **ROOM_FOR_ONE)
@example(strategy="outer", **ROOM_FOR_ONE)
@example(strategy="outer", **ROOM_FOR_ONE | {"blocks": [50, 10], "length": 5000})
def test_positions_are_those_of_the_equations(
    blocks: list[int], strategy: Strategy, length: int, probability: float, seed: int
) -> None:
    found = skip_positions(
        blocks, strategy=strategy, length=length, probability=probability, rng=np.random.default_rng(seed)
    )
    positions = found.tolist()
    assert found.dtype == np.int64
    assert positions == twin(blocks, strategy, length, probability, np.random.default_rng(seed))
    assert probability or positions == list(range(sum(blocks)))
    assert all(first < second for first, second in itertools.pairwise(positions))
    assert all(position < max(length, sum(blocks)) for position in positions)


@pytest.mark.parametrize("drawn", [0.0, 0.5, 1 - 2**-53])
def test_probabilities_0_and_1_are_certain_whatever_is_drawn(drawn: float) -> None:
    rng = mock.Mock(wraps=np.random.default_rng(0), **{"random.return_value": drawn})
    never = skip_positions([3, 2], strategy="all", length=99, probability=0.0, rng=rng)
    always = skip_positions([3, 2], strategy="all", length=99, probability=1.0, rng=rng)
    assert never.tolist() == [0, 1, 2, 3, 4]
    assert always[3] > 3


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"strategy": "otter"}, "all, inner or outer"),
        ({"probability": 1.5}, "between 0 and 1"),
        ({"probability": math.nan}, "between 0 and 1"),
        ({"length": 0}, "at least 1"),
        ({"blocks": [3, -1]}, "fewer than 0"),
    ],
)
def test_impossible_values_are_named(change: dict[str, object], message: str) -> None:
    options: dict[str, object] = {"blocks": [3, 1], "strategy": "all", "length": 9, "probability": 0.5}
    with pytest.raises(ValueError, match=message):
        skip_positions(**(options | change), rng=np.random.default_rng(0))  # pyright: ignore


def test_the_generator_depends_on_seed_epoch_sample_and_copy_alone() -> None:
    def numbers(seed: int, epoch: int, sample_id: str, copy: int = 0) -> list[int]:
        return position_rng(seed, epoch, sample_id, copy).integers(0, 2**62, 3).tolist()

    keys = [(0, 0, name) for name in ("a", "b", "a/1", "0/a", "", "ü\ud800")]
    keys += [(0, 0, "a", 1), (0, 0, "a", 2), (0, 1, "a", 1), (1, 0, "a"), (0, 1, "a"), (-1, 0, "a")]
    assert len({tuple(numbers(*key)) for key in keys}) == len(keys)
    assert numbers(7, 3, "sample") == numbers(7, 3, "sample", 0)
    code = (
        "from gateau_dagster.training.skip_positions import position_rng\n"
        "print(position_rng(7, 3, 'sample').integers(0, 2**62, 3).tolist())"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == str(numbers(7, 3, "sample"))


def test_copies_are_numbered_in_the_order_of_the_mix() -> None:
    assert copy_numbers(iter(["a", "b", "a", "a", "c", "b"])) == [0, 0, 1, 2, 0, 1]


LEVEL = 1e-3
"""Level of the tests. The draws are seeded: a test that passes always passes."""


def product_of_uniforms(k: int, x: np.ndarray) -> np.ndarray:
    """P(U_1 ... U_k <= x) = x Σ_{j<k} (-ln x)^j / j!."""
    x = np.maximum(x, 1e-300)
    return x * sum((-np.log(x)) ** j / math.factorial(j) for j in range(k))


def test_later_skips_shrink_and_their_sum_piles_up_near_l() -> None:
    """Eq. 3 draws one skip after the other: each is a product of uniforms of what was free, none but the first even."""
    blocks, length, count = [1] * 6, 2_000_006, 3000
    room = length - sum(blocks)
    drawn = [
        skip_positions(blocks, strategy="all", length=length, probability=1, rng=position_rng(11, 0, str(sample)))
        for sample in range(count)
    ]
    skips = np.diff(drawn, axis=1) - 1
    for k in range(1, 6):
        share, left = skips[:, k - 1] / room, 1 - skips[:, :k].sum(axis=1) / room
        for values in (share, left):
            assert kstest(values, lambda x, k=k: product_of_uniforms(k, x)).pvalue > LEVEL
            assert (kstest(values, "uniform").pvalue > LEVEL) == (k == 1)
        error = math.sqrt((3.0**-k - 4.0**-k) / count)
        assert abs(share.mean() - 2.0**-k) < 4 * error


def distances_twin(blocks: list[int], positions: list[int]) -> set[int]:
    """The distances from every token of a response to every token up to itself."""
    owners = [block for block, size in enumerate(blocks) for _ in range(size)]
    return {
        abs(positions[query] - positions[key])
        for query in range(len(positions))
        for key in range(query + 1)
        if owners[query] % 2 == 1
    }


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
    assert set(held) == distances_twin(blocks, positions.tolist())
    assert len(set(held)) == len(held)
    assert all(before[1] + 1 < after[0] for before, after in itertools.pairwise(intervals))


def test_frequencies_of_a_data_set_are_those_of_its_samples() -> None:
    rng = np.random.default_rng(3)
    samples = [(f"s{index}", rng.integers(0, 9, rng.integers(1, 7)).tolist()) for index in range(25)]
    samples.append(("longer than L", [190, 20]))
    table = relative_distances(samples, strategy="all", length=200, probability=0.6, seed=5, epoch=2)
    plain, spread = Counter[int](), Counter[int]()
    for sample_id, blocks in samples:
        generator = position_rng(5, 2, sample_id)
        positions = skip_positions(blocks, strategy="all", length=200, probability=0.6, rng=generator)
        plain.update(distances_twin(blocks, list(range(sum(blocks)))))
        spread.update(distances_twin(blocks, positions.tolist()))
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


@pytest.mark.parametrize("blocks", [[], [[], [5], [5, 0]]])
def test_samples_without_a_response_hold_no_distance(blocks: list[list[int]]) -> None:
    samples = [(f"s{number}", sizes) for number, sizes in enumerate(blocks)]
    table = relative_distances(samples, strategy="outer", length=50, probability=1.0, seed=0)
    assert table["end"][-1] == 50
    assert table["before"].sum() == table["after"].sum() == 0
