"""Figures of weighted, tied, resampled samples against the slow definitions."""

from typing import Any

import common_ranking
import numpy as np
import pytest

from gateau_dagster.selection.statistics import auroc, precision_at

SCORES = np.array([0.9, 0.5, 0.5, 0.5, 0.2, 0.2, 0.1, -np.inf, 0.7, 0.5])
LABELS = np.array([1, 0, 1, 1, 0, 1, 0, 0, 0, 1], dtype=bool)


def task(*, balanced: bool = False, sets: int = 1) -> object:
    return common_ranking.Task(name="t", members=[np.arange(10)] * sets, positive=[LABELS] * sets, balanced=balanced)


def measured(question: Any, vectors: list[np.ndarray], draws: int) -> Any:
    return common_ranking.measure(question, vectors, common_ranking.drawn_weights(question, draws=draws))


def pairwise_auroc(weights: np.ndarray) -> float:
    """Chance that a positive is above a negative, each counted as often as it weighs."""
    won = total = 0.0
    for i in np.flatnonzero(LABELS):
        for j in np.flatnonzero(~LABELS):
            pair = weights[i] * weights[j]
            total += pair
            won += pair * (1.0 if SCORES[i] > SCORES[j] else 0.5 if SCORES[i] == SCORES[j] else 0.0)
    return won / total


def shuffled_precision(weights: np.ndarray, share: float) -> float:
    """Mean over many orders of equal scores of the positive mass in the best `share` of all mass, in thousandths."""
    rng, found = np.random.default_rng(0), []
    pieces = np.repeat(np.arange(10), np.round(weights * 30).astype(int))
    for _ in range(80):
        order = sorted(pieces, key=lambda i: (-SCORES[i], rng.random()))
        found.append(LABELS[order[: round(share * len(order))]].mean())
    return float(np.mean(found))


def test_figures_of_weighted_samples_are_those_of_the_definitions() -> None:
    weights = np.array([[1.0] * 10, [0, 1, 2, 1, 3, 0, 1, 1, 0, 1]])
    found = common_ranking.weighted_figures(SCORES, LABELS, weights)
    for row, weight in zip(found, weights, strict=True):
        assert row[0] == pytest.approx(pairwise_auroc(weight), abs=1e-12)
        for value, share in zip(row[1:], common_ranking.SHARES, strict=True):
            assert value == pytest.approx(shuffled_precision(weight, share), abs=0.04)


def test_unweighted_figures_are_those_of_the_project() -> None:
    scores = np.where(np.isinf(SCORES), -5.0, SCORES)
    whole = measured(task(), [scores], 1).whole[0]
    assert whole == pytest.approx(
        [auroc(scores, LABELS), *(precision_at(scores, LABELS, count) for count in (1, 2, 4))], abs=1e-12
    )


def test_balanced_sides_weigh_the_same() -> None:
    labels = np.array([True, False, False, False])
    few = common_ranking.Task(name="t", members=[np.arange(4)], positive=[labels], balanced=True)
    whole = measured(few, [np.array([4.0, 3, 2, 1])], 1).whole[0]
    assert whole == pytest.approx([1, 1, 1, 1])
    worst = measured(few, [np.array([1.0, 3, 2, 4])], 1).whole[0]
    assert worst == pytest.approx([0, 0, 0, 0])


def test_resampling_keeps_both_sides() -> None:
    drawn = common_ranking.resampled(LABELS, draws=50, rng=np.random.default_rng(1))
    assert (drawn[:, LABELS].sum(axis=1) == 5).all() and (drawn[:, ~LABELS].sum(axis=1) == 5).all()
    assert drawn.std(axis=0).min() > 0


def test_the_interval_holds_the_value_and_the_seed_decides() -> None:
    rng = np.random.default_rng(0)
    vectors = [np.where(LABELS, 1, 0) + rng.normal(size=10) for _ in range(3)]
    figures = measured(task(sets=3), vectors, 500)
    (estimate, *_) = common_ranking.estimates(figures)
    assert estimate.low < estimate.value < estimate.high
    assert estimate.value == pytest.approx(np.mean([auroc(each, LABELS) for each in vectors]))
    assert common_ranking.estimates(measured(task(sets=3), vectors, 500))[0] == estimate


def test_data_sets_that_ask_the_same_questions_are_resampled_as_one() -> None:
    """Ten copies of two data sets say no more than the two."""
    vectors = [np.where(LABELS, 1.0, 0.0), SCORES]
    two, all_ = (
        common_ranking.evaluated([task(sets=2 * copies)], {"m": vectors * copies}, 50, [7, 8] * copies)["m"]["t"]
        for copies in (1, 10)
    )
    assert two.whole == pytest.approx(all_.whole) and two.draws == pytest.approx(all_.draws)
    assert two.draws.shape == (2, 50, 4) and two.draws.std() > 0


def test_a_difference_compares_the_same_draws() -> None:
    vectors = [np.where(LABELS, 1.0, 0.0), SCORES]
    figures = measured(task(sets=2), vectors, 200)
    same = common_ranking.difference(figures, figures)
    assert (same.value, same.low, same.high) == (0, 0, 0)
    worse = measured(task(sets=2), [-each for each in vectors], 200)
    assert common_ranking.difference(figures, worse).low > 0


def test_tasks_of_groups_and_kinds() -> None:
    labels = {"far": True, "near": False, "strange": True}
    sources = [["far", "near", "strange"], ["near", "far", "near"]]
    groups = {"both": ["far", "near"], "one label": ["far", "strange"]}
    both, *kinds = common_ranking.tasks_of(sources, labels, groups, {"far", "near"})
    assert (both.name, both.balanced, [rows.tolist() for rows in both.members]) == ("both", False, [[0, 1], [0, 1, 2]])
    assert [positive.tolist() for positive in both.positive] == [[True, False], [False, True, False]]
    assert [(each.name, each.balanced) for each in kinds] == [("far", True), ("near", True)], (
        "strange is in one set only"
    )
    near = kinds[1]  # against `far` only: `strange` is out of reach
    assert [rows.tolist() for rows in near.members] == [[0, 1], [0, 1, 2]]


def test_data_sets_evaluated_alone_are_joined_to_what_all_give_together() -> None:
    rng = np.random.default_rng(3)
    whole, vectors, blocks = task(sets=4), [rng.random(10) for _ in range(4)], [7, 8, 7, 8]
    together = common_ranking.evaluated([whole], {"m": vectors}, 50, blocks)["m"]["t"]
    alone = [
        common_ranking.evaluated([task(sets=1)], {"m": [vector]}, 50, [block])
        for vector, block in zip(vectors, blocks, strict=True)
    ]
    figures = common_ranking.joined(alone, blocks)["m"]["t"]
    np.testing.assert_array_equal(figures.whole, together.whole)
    np.testing.assert_array_equal(figures.draws, together.draws)
    alone[1]["m"].pop("t")
    assert common_ranking.joined(alone, blocks)["m"] == {}, "a task that one data set lacks"
