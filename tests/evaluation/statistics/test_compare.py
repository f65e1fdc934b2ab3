"""What is said of models that answered the same questions."""

from itertools import permutations

import numpy as np
import pytest

from gateau_dagster.config.base import Section
from gateau_dagster.evaluation.registry import all_benchmarks
from gateau_dagster.evaluation.statistics.compare import Model, Outcomes, Standing, compare, outcomes, total_of
from tests.evaluation.builders import configured

RNG = np.random.default_rng(7)
HARD = RNG.normal(size=60)  # questions differ more than models do


def _model(name: str, shift: float, *, seeds: int = 1, trained: bool = True, noise: float = 0.2) -> Model:
    apart = noise * RNG.normal(size=(seeds, 60)) + shift
    return Model(name=name, values=HARD + apart, trained=trained)


def _compared(*models: Model, reference: str = "", higher: bool = True) -> dict[str, Standing]:
    total = total_of(["a"] * 60, by_group=False)
    return {each.name: each for each in compare(models, total, reference=reference, higher=higher, draws=1000)}


def test_a_pair_is_told_apart_though_their_intervals_overlap() -> None:
    found = _compared(_model("low", 0.0), _model("high", 0.3), reference="low")
    low, high = found["low"], found["high"]
    assert low.total.high is not None and high.total.low is not None and low.total.high > high.total.low
    assert high.difference is not None and high.difference.low is not None and high.difference.low > 0
    assert high.difference.value == pytest.approx(high.total.value - low.total.value)
    assert high.best and not low.best and high.probability_best > 0.99


def test_best_is_every_model_that_is_not_told_apart_from_the_best() -> None:
    found = _compared(_model("bad", -2.0), _model("good", 0.0), _model("as good", 0.01))
    assert {name for name, each in found.items() if each.best} == {"good", "as good"}
    assert sum(each.probability_best for each in found.values()) == pytest.approx(1)


def test_where_less_is_better_the_lowest_is_the_best() -> None:
    models = _model("low", 0.0), _model("high", 0.3)
    found = _compared(*models, higher=False, reference="low")
    assert found["low"].best and not found["high"].best and found["low"].probability_best > 0.99
    difference = found["high"].difference
    assert difference is not None and difference.value > 0  # the sign stays that of the values
    (side,) = outcomes(models, reference="low", higher=False)
    assert side.worse > 0.5


def test_the_reference_has_no_difference_and_neither_has_anything_without_one() -> None:
    models = _model("one", 0.0), _model("two", 0.1)
    assert _compared(*models, reference="one")["one"].difference is None
    assert all(each.difference is None for each in _compared(*models, reference="gone").values())
    assert outcomes(models, reference="gone") == []


def test_shares_of_questions_add_up() -> None:
    one = _model("one", 0.0)
    two = Model(name="two", values=one.values + np.array([1.0] * 30 + [0.0] * 20 + [-1.0] * 10))
    found = outcomes([one, two], reference="one")
    assert found == [Outcomes(name="two", better=30 / 60, equal=20 / 60, worse=10 / 60)]


def test_the_same_answers_are_never_told_apart_and_share_the_chance() -> None:
    one = _model("one", 0.0)
    found = _compared(one, Model(name="two", values=one.values), reference="one")
    assert found["one"].best and found["two"].best
    assert found["one"].probability_best == found["two"].probability_best == 0.5
    difference = found["two"].difference
    assert difference is not None and (difference.low, difference.high) == (0, 0)


def test_seeds_that_differ_widen_every_interval_but_that_of_a_model_that_was_not_trained() -> None:
    seeds = Model(name="seeds", values=HARD + np.array([[-1.0], [0.0], [1.0]]))
    single, base = _model("single", 0.5), _model("base", 0.0, trained=False)
    alone, beside = _compared(single, base, reference="base"), _compared(single, base, seeds, reference="base")

    def width(found: dict[str, Standing], name: str) -> float:
        low, high = found[name].total.low, found[name].total.high
        assert low is not None and high is not None
        return high - low

    assert width(beside, "single") > 4 * width(alone, "single")
    assert width(beside, "base") == pytest.approx(width(alone, "base"))
    assert alone["single"].best and not alone["base"].best
    assert beside["base"].best  # one training says little, where trainings differ so much


def test_right_and_wrong_stay_within_what_there_is_and_all_right_is_not_sure() -> None:
    total = total_of(["a"] * 20, by_group=False)
    models = [Model(name="all", values=np.ones((1, 20))), Model(name="none", values=np.zeros((1, 20)))]
    found = {each.name: each.total for each in compare(models, total, draws=200)}
    assert found["all"].high == 1 and found["none"].low == 0
    assert found["all"].low == pytest.approx(0.85, abs=0.02)


@pytest.mark.parametrize(("value", "low"), [(1.0, 0.85), (100.0, 85.0), (0.0, None)])
def test_where_all_models_are_always_right_or_always_wrong_that_is_not_sure(value: float, low: float | None) -> None:
    total = total_of(["a"] * 20, by_group=False)
    models = [Model(name=name, values=np.full((1, 20), value)) for name in "ab"]
    for each in compare(models, total, reference="a", draws=50):
        assert each.best and each.total.value == pytest.approx(value)
        assert each.total.low == (None if low is None else pytest.approx(low, rel=0.02))


def test_one_question_gives_a_value_and_nothing_else() -> None:
    models = [Model(name=name, values=np.array([[value]])) for name, value in (("one", 1.0), ("two", 2.0))]
    found = compare(models, total_of(["a"], by_group=True), reference="one", draws=10)
    assert [each.total.value for each in found] == [1.0, 2.0]
    assert all(each.total.low is None and each.best for each in found)
    assert found[1].difference is not None and found[1].difference.high is None


def test_one_model_alone_is_the_best() -> None:
    (found,) = _compared(_model("only", 0.0)).values()
    assert found.best and found.probability_best == 1


def test_questions_that_came_out_alike_in_each_group_tell_nothing_of_others() -> None:
    """Two of each of three groups: no spread is seen, which is no reason to be sure."""
    total = total_of(["a", "a", "b", "b", "c", "c"], by_group=True)
    one = Model(name="one", values=np.array([[10.0, 10, 100, 100, 0, 0]]), trained=False)
    other = Model(name="other", values=np.array([[30.0, 30, 100, 100, 0, 0]]), trained=False)
    none = Model(name="none", values=np.zeros((1, 6)), trained=False)
    models = [one, other, none, Model(name="copy", values=one.values, trained=False)]
    found = {each.name: each for each in compare(models, total, reference="one", draws=200)}
    assert all(each.total.low is None and each.total.high is None and each.best for each in found.values())
    difference, copy = found["other"].difference, found["copy"].difference
    assert difference is not None and difference.value > 0 and difference.low is None
    assert copy is not None and (copy.low, copy.high) == (0, 0)
    many = [Model(name=each.name, values=each.values.repeat(5, axis=1), trained=False) for each in models]
    total = total_of([group for group in "abc" for _ in range(10)], by_group=True)
    difference = compare(many, total, reference="one", draws=200)[1].difference
    assert difference is not None and (difference.low, difference.high) == pytest.approx((20 / 3, 20 / 3))


def test_of_right_and_wrong_a_difference_is_within_what_there_is() -> None:
    total = total_of(["a", "a"], by_group=True)
    models = [
        Model(name=name, values=np.array([row]), trained=False) for name, row in (("x", [0.0, 100]), ("y", [0, 0]))
    ]
    found = compare(models, total, reference="x", draws=200)[1].difference
    assert found is not None and (found.value, found.low, found.high) == (-50, -100, 100)


def test_no_interval_reaches_beyond_what_answers_can_be_worth() -> None:
    values = {"good": [100.0, 93.0, 100.0, 20.0], "bad": [0.0, 7.0, 0.0, 55.0]}
    models = [Model(name=name, values=np.array([each])) for name, each in values.items()]
    total = total_of(["a"] * 4, by_group=False)
    free, bound = (
        compare(models, total, reference="bad", bounds=bounds) for bounds in ((-np.inf, np.inf), (0.0, 100.0))
    )
    high, low = free[0].total, free[1].total
    assert high.high is not None and high.high > 100 and low.low is not None and low.low < 0
    assert (bound[0].total.high, bound[1].total.low) == (100, 0)
    assert (bound[0].total.low, bound[1].total.high) == (high.low, low.high)
    for one, other in zip(free, bound, strict=True):
        assert (one.best, one.probability_best) == (other.best, other.probability_best)
    assert free[0].difference is not None and free[0].difference.high is not None and free[0].difference.high > 100
    assert bound[0].difference is not None and bound[0].difference.high == 100


BOUNDS = {
    "longbench": (0, 100),
    "longbench_judged": (0, 100),
    "mt_bench": (10, 100),
    "generated_needle_judged": (1, 10),
    "text_perplexity": (1, np.inf),
}


@pytest.mark.parametrize(("name", "wanted"), BOUNDS.items())
def test_a_benchmark_says_what_its_answers_can_be_worth(name: str, wanted: tuple[float, float]) -> None:
    assert all_benchmarks()[name](configured(), Section()).bounds == wanted


def test_totals_that_differ_by_rounding_alone_do_not_differ() -> None:
    questions = [0.1, 0.2, 0.3, 0.7, 0.05, 0.6]
    total = total_of(["all"] * len(questions), by_group=False)
    one = np.array([questions])
    orders = (np.array([order]) for order in permutations(questions))
    other = next(each for each in orders if np.ptp(total.of(np.concatenate([one, each]))))
    _, found = compare([Model(name="x", values=one), Model(name="y", values=other)], total, reference="x")
    assert found.difference is not None and found.difference.value == 0


def test_two_ratings_that_happened_to_be_given_are_no_bounds() -> None:
    values = np.array([[70.0, 80.0, 80.0, 80.0, 80.0]])
    total = total_of(["all"] * 5, by_group=False)
    (found,) = compare([Model(name="x", values=values)], total, bounds=(10.0, 100.0))
    assert found.total.high is not None and 80 < found.total.high < 100
