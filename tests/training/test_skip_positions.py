"""Eq. 2-4 of SkipAlign against a twin that follows them block by block, and what its draws depend on."""

import itertools
import math
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateau_dagster.training.skip_positions import Strategy, copy_numbers, position_rng, skip_positions

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


@settings(max_examples=150, deadline=None)
@given(**SETTINGS)
def test_positions_are_those_of_the_equations(
    blocks: list[int], strategy: Strategy, length: int, probability: float, seed: int
) -> None:
    positions = skip_positions(
        blocks, strategy=strategy, length=length, probability=probability, rng=np.random.default_rng(seed)
    )
    assert positions.dtype == np.int64
    assert positions.tolist() == twin(blocks, strategy, length, probability, np.random.default_rng(seed))


@settings(max_examples=150, deadline=None)
@given(**SETTINGS)
def test_positions_increase_below_l_and_jump_only_where_the_strategy_says(
    blocks: list[int], strategy: Strategy, length: int, probability: float, seed: int
) -> None:
    positions = skip_positions(
        blocks, strategy=strategy, length=length, probability=probability, rng=np.random.default_rng(seed)
    ).tolist()
    assert all(first < second for first, second in itertools.pairwise(positions))
    assert all(position < max(length, sum(blocks)) for position in positions)
    if not positions:
        return
    owners = [block for block, size in enumerate(blocks) for _ in range(size)]
    assert positions[: blocks[0]] == list(range(blocks[0]))
    for place in range(1, len(positions)):
        if positions[place] != positions[place - 1] + 1:
            block = owners[place]
            assert block > 0 and owners[place - 1] < block  # contiguous inside
            assert strategy == "all" or (strategy == "inner") == (block % 2 == 1)
    if sum(blocks) >= length:
        assert positions == list(range(len(positions)))


@settings(max_examples=100, deadline=None)
@given(blocks=DIALOGUES, strategy=st.sampled_from(STRATEGIES), seed=st.integers(0, 2**32))
def test_without_probability_positions_are_plain_to_the_bit(blocks: list[int], strategy: Strategy, seed: int) -> None:
    positions = skip_positions(
        blocks, strategy=strategy, length=10**6, probability=0.0, rng=np.random.default_rng(seed)
    )
    np.testing.assert_array_equal(positions, np.arange(sum(blocks), dtype=np.int64), strict=True)


class Fixed(np.random.Generator):
    """A generator that always draws the same number of [0, 1)."""

    def __init__(self, value: float) -> None:
        super().__init__(np.random.PCG64(0))
        self.value = value

    def random(self, *_: object, **__: object) -> float:  # pyright: ignore[reportIncompatibleMethodOverride]
        return self.value


@pytest.mark.parametrize("drawn", [0.0, 0.5, 1 - 2**-53])
def test_probabilities_0_and_1_are_certain_whatever_is_drawn(drawn: float) -> None:
    never = skip_positions([3, 2], strategy="all", length=99, probability=0.0, rng=Fixed(drawn))
    always = skip_positions([3, 2], strategy="all", length=99, probability=1.0, rng=Fixed(drawn))
    assert never.tolist() == [0, 1, 2, 3, 4]
    assert always[3] > 3


def test_a_single_turn_under_outer_has_nowhere_to_skip() -> None:
    for strategy in STRATEGIES:
        positions = skip_positions(
            [50, 10], strategy=strategy, length=5000, probability=1.0, rng=position_rng(0, 0, "one")
        )
        assert bool((np.diff(positions) > 1).any()) == (strategy != "outer")


def test_room_for_one_skip_is_used_to_the_last_position() -> None:
    for seed in range(20):
        positions = skip_positions(
            [4, 3, 2, 1], strategy="all", length=11, probability=1.0, rng=np.random.default_rng(seed)
        )
        assert positions.tolist() == [0, 1, 2, 3, 5, 6, 7, 8, 9, 10]


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

    keys = [
        (0, 0, "a", 1),
        (0, 0, "a", 2),
        (0, 1, "a", 1),
        (0, 0, "a/1"),
        (0, 0, "a"),
        (1, 0, "a"),
        (0, 1, "a"),
        (0, 0, "b"),
        (-1, 0, "a"),
        (0, 0, ""),
        (0, 0, "0/a"),
        (0, 0, "ü\ud800"),
    ]
    assert len({tuple(numbers(*key)) for key in keys}) == len(keys)
    assert numbers(7, 3, "sample") == numbers(7, 3, "sample", 0)
    code = (
        "from gateau_dagster.training.skip_positions import position_rng\n"
        "print(position_rng(7, 3, 'sample').integers(0, 2**62, 3).tolist())"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == str(numbers(7, 3, "sample"))


def test_copies_are_numbered_in_the_order_of_the_mix() -> None:
    assert copy_numbers(iter(["a", "b", "a", "a", "c", "b"])) == [0, 0, 1, 2, 0, 1]
