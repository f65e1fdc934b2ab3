"""Micro batches of similar cost at the same time."""

from itertools import permutations

import numpy as np
import pytest

from gateau_dagster.training.balance import balanced_order, imbalance, row_costs


def test_costs_are_squared_lengths_added_up() -> None:
    assert row_costs([[0, 1], [], [2]], [3, 4, 100_000]).tolist() == [25, 0, 10**10]


def test_micro_batches_of_a_step_stay_whole_and_come_by_falling_cost() -> None:
    costs = np.array([1, 1, 5, 5, 2, 9, 0, 0, 0, 1, 7, 0, 3, 4, 3, 4])  # two steps of four batches of two rows
    order = balanced_order(costs, rows_per_batch=2, batches_per_step=4)
    assert order.tolist() == [4, 5, 2, 3, 0, 1, 6, 7, 10, 11, 12, 13, 14, 15, 8, 9]


def slow_imbalance(costs: list[int], *, processes: int) -> float:
    waits = means = 0.0
    for start in range(0, len(costs), processes):
        passed = costs[start : start + processes]
        waits += max(passed)
        means += sum(passed) / processes
    return waits / means


def test_no_other_order_of_a_step_waits_less() -> None:
    for seed in range(5):
        costs = np.random.default_rng(seed).integers(0, 50, 6) ** 2
        order = balanced_order(costs, rows_per_batch=1, batches_per_step=6)
        found = imbalance(costs[order], processes=2, rows_per_batch=1)
        assert found == pytest.approx(min(slow_imbalance(list(each), processes=2) for each in permutations(costs)))


def test_a_rank_is_ahead_of_no_other_by_more_than_a_micro_batch_over_a_step() -> None:
    for seed in range(20):
        costs = np.random.default_rng(seed).integers(0, 1000, 48)
        order = balanced_order(costs, rows_per_batch=1, batches_per_step=48)
        of_ranks = costs[order].reshape(-1, 8).sum(axis=0)
        assert of_ranks.max() - of_ranks.min() <= costs.max() - costs.min()


def test_imbalance_counts_whole_micro_batches() -> None:
    costs = np.array([1, 9, 5, 5, 2, 2, 2, 6])  # two passes of two ranks with two rows
    assert imbalance(costs, processes=2, rows_per_batch=2) == pytest.approx((10 + 8) / (10 + 6))
    assert imbalance(costs, processes=1, rows_per_batch=2) == 1
