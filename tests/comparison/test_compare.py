"""The whole comparison: agreement, profiles, disputed samples, and the record that is kept."""

import itertools
import json
import math
import statistics

import numpy as np
import polars as pl
import pytest

from gateau_dagster.comparison.compare import (
    OTHERS,
    SOURCES,
    UNKNOWN,
    compare_methods,
    compare_pairs,
    kendall,
    levels,
    most_disputed,
    orders_of,
    profile,
    rank_spread,
    read_orders,
    read_traits,
    spread,
)
from gateau_dagster.comparison.result import (
    AlphaCurve,
    AlphaSweep,
    AttentionPoint,
    AttentionSweep,
    MethodComparison,
    Point,
    SegmentLengthSweep,
    spearman_matrix,
)
from gateau_dagster.selection.statistics import auroc
from tests.comparison import slow
from tests.comparison.frames import NAMES, described, frame
from tests.comparison.slow import order, scores_of
from tests.kit.error_codes import refused


def compared(given: pl.DataFrame | None = None, *names: str, **options: object) -> MethodComparison:
    given = frame() if given is None else given
    return compare_methods(given, described(*(names or NAMES)), **({"chosen": 6} | options))  # type: ignore[arg-type]


def test_it_does_not_depend_on_the_order_of_the_rows() -> None:
    assert compared(frame().sort("sample_id", descending=True)) == compared(frame())


def test_what_a_method_prefers_is_the_profile_of_its_best_tenth() -> None:
    given = frame()
    found = compared(given)
    for facts in found.methods:
        best = slow.order(slow.scores_of(given, facts.name))[:6]
        assert facts.best.samples == len(best)
        lengths = [given.filter(sample_id=key)["context_tokens"].item() for key in best]
        mean = facts.best.context_tokens.mean if facts.best.context_tokens else None
        assert mean == (pytest.approx(sum(lengths) / len(lengths)) if lengths else None)
    assert found.everything.samples == 60
    assert [facts.scored for facts in found.methods] == [
        60,
        *(60 - given[f"score:{n}"].null_count() for n in "bc"),
        0,
        60,
    ]


def test_auroc_counts_ordered_pairs_with_unscored_samples_last() -> None:
    given = frame()
    far = (given["source"] == "code").fill_null(False)
    assert given.filter(far)["score:c"].null_count()
    for facts in compared(given, ground_truth=["code"]).methods:
        if facts.name == "nothing":
            assert (facts.auroc, facts.precision) == (None, None)
            continue
        values = given[f"score:{facts.name}"].cast(pl.Float64).fill_null(-99)
        assert facts.auroc == pytest.approx(auroc(values.to_list(), far.to_list()))
        first = slow.order(slow.scores_of(given, facts.name))[:6]
        assert facts.precision == pytest.approx(given.filter(far)["sample_id"].is_in(first).sum() / len(first))


@pytest.mark.parametrize("truth", [[], ["no such source"]])
def test_without_a_ground_truth_there_is_no_auroc(truth: list[str]) -> None:
    assert {(facts.auroc, facts.precision) for facts in compared(ground_truth=truth).methods} == {(None, None)}


def test_buckets_hold_the_samples_of_their_length_and_rank_these_alone() -> None:
    given = frame().with_columns(context_tokens=pl.Series([3999, 4000, 7999, 8000, None, *[100] * 55]))
    found = compared(given)
    assert [(one.low, one.high, one.samples) for one in found.buckets] == [
        (0, 4000, 56), (4000, 8000, 2), (8000, None, 1),
    ]  # fmt: skip
    some = given.filter(pl.col("context_tokens") < 4000)
    pair = found.buckets[0].pairs[1]
    one, two = (slow.scores_of(some, name) for name in (pair.first, pair.second))
    assert pair.spearman == pytest.approx(slow.spearman(one, two))
    assert pair.overlaps[0].wanted == 6
    assert pair.overlaps[0].common == len(set(slow.order(one)[:6]) & set(slow.order(two)[:6]))


def test_an_empty_bucket_has_no_pairs() -> None:
    found = compared(frame(longest=3000)).buckets
    assert [(one.samples, len(one.pairs)) for one in found] == [(60, 10), (0, 0), (0, 0)]


def test_json_gives_the_same_record_back() -> None:
    point = Point(value=0.1, spearman=None, overlap=0.5, auroc=0.25)
    sweeps = {
        "alpha": AlphaSweep(preset="robust", alpha=0.8, samples=60, chosen=6,
                            curves=(AlphaCurve(preset="paper", points=(point,)),)),
        "segment_length": SegmentLengthSweep(configured=128, samples=60, chosen=6, points=(point,), single=(0,)),
        "attention": AttentionSweep(configured=128, samples=60,
                                    points=(AttentionPoint(length=128, median_peak=2.0, spearman=1.0),)),
    }  # fmt: skip
    found = compared(ground_truth=["code"], selected_by="a", **sweeps)
    assert MethodComparison.from_json(found.to_json()) == found
    assert MethodComparison.from_json(found.to_json().encode()) == found


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"samples": "many"}'])
def test_json_of_something_else_is_refused(text: str) -> None:
    with refused("storage.out_of_date"):
        MethodComparison.from_json(text)


def test_json_has_no_value_that_is_not_json() -> None:
    json.loads(compared().to_json(), parse_constant=pytest.fail)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_few_samples_and_one_method(count: int) -> None:
    found = compared(frame(count, nulls=0), "a", chosen=5)
    assert (found.samples, found.chosen, found.pairs, found.disputed) == (count, min(count, 5), (), ())
    assert found.methods[0].best.samples == 1


@pytest.mark.parametrize(
    ("given", "names", "options", "message"),
    [
        (frame().drop("perplexity"), (), {}, "needs the columns perplexity"),
        (frame(), ("a", "a"), {}, "each once"),
        (frame(), ("a",), {"selected_by": "b"}, "b selects, but is none of the methods a"),
        (frame().clear(), (), {}, "at least one sample"),
        (pl.concat([frame(), frame()]), (), {}, "a sample stands twice, or has no id: s0"),
    ],
)
def test_input_that_does_not_fit_is_refused(
    given: pl.DataFrame, names: tuple[str, ...], options: dict[str, object], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        compared(given, *names, **options)


def test_the_matrix_is_symmetric_with_ones_and_gaps() -> None:
    found = compared()
    matrix = spearman_matrix(found.names, found.pairs)
    by_names = {(pair.first, pair.second): pair.spearman for pair in found.pairs}
    for row, one in enumerate(NAMES):
        for column, two in enumerate(NAMES):
            value = by_names.get((one, two), by_names.get((two, one))) if one != two else 1.0
            assert (value is None and matrix[row, column] != matrix[row, column]) or matrix[row, column] == value


def test_a_profile_is_that_of_plain_statistics() -> None:
    given = frame()
    rows = np.arange(60) % 3 == 0
    some = given.filter(pl.Series(rows))
    traits = read_traits(given)
    found = profile(traits, rows)
    assert found.samples == 20
    known = [value for value in some["perplexity"] if value is not None]
    assert 0 < len(known) < 20
    for values, got in ((some["context_tokens"].to_list(), found.context_tokens), (known, found.perplexity)):
        assert got is not None
        assert (got.known, got.mean) == (len(values), pytest.approx(statistics.fmean(values)))
        quartiles = statistics.quantiles(values, n=4, method="inclusive")
        assert [got.low, got.median, got.high] == pytest.approx(quartiles)
    names = [source or UNKNOWN for source in some["source"]]
    assert dict(zip(traits.sources, found.sources, strict=True)) == pytest.approx(
        {source: names.count(source) / 20 for source in traits.sources}
    )
    assert set(traits.sources) == {"book", "code", "paper", UNKNOWN}


def test_small_sources_are_counted_together() -> None:
    names = [f"source {number:02d}" for number in range(SOURCES + 5)] + ["source 03"]
    traits = read_traits(frame(len(names)).with_columns(source=pl.Series(names)))
    assert traits.sources[0] == "source 03"
    assert traits.sources[-1] == OTHERS
    assert len(traits.sources) == SOURCES + 1
    shares = profile(traits, np.ones(len(names), dtype=np.bool_)).sources
    assert shares[-1] == pytest.approx(5 / len(names))
    assert sum(shares) == pytest.approx(1)


def test_nothing_known_is_none() -> None:
    assert spread(np.array([np.nan, np.inf])) is None
    empty = profile(read_traits(frame()), np.zeros(60, dtype=np.bool_))
    assert (empty.samples, empty.context_tokens, sum(empty.sources)) == (0, None, 0)


def test_the_spread_is_that_of_plain_loops() -> None:
    given = frame().sort("sample_id")
    ids = given["sample_id"].to_list()
    scores = [slow.scores_of(given, name) for name in NAMES]
    expected = {key: slow.rank_spread(scores, key) for key in ids}
    orders = read_orders(given, NAMES)
    assert rank_spread(orders) == pytest.approx([expected[key] for key in ids], abs=1e-12)
    found = most_disputed(orders, ids, most=5)
    assert [one.sample_id for one in found] == sorted(ids, key=lambda key: (-round(expected[key], 12), key))[:5]
    for one in found:
        for name, rank in zip(NAMES, one.ranks, strict=True):
            place = slow.order(scores[NAMES.index(name)])
            assert rank == (place.index(one.sample_id) + 1 if one.sample_id in place else None)


def test_agreement_and_single_methods_leave_nothing_disputed() -> None:
    alike = np.array([[3.0, 2.0, 1.0], [30.0, 20.0, 10.0]])
    assert most_disputed(orders_of(("a", "b"), alike), "xyz", most=9) == []
    assert most_disputed(orders_of(("a",), alike[:1]), "xyz", most=9) == []


def test_places_are_those_of_a_plain_sort() -> None:
    given = frame().sort("sample_id")
    orders = read_orders(given, NAMES)
    for row, name in enumerate(NAMES):
        expected = order(scores_of(given, name))
        known = {key: place for key, place in zip(given["sample_id"], orders.places[row], strict=True) if place}
        assert sorted(known, key=known.__getitem__) == expected
        assert sorted(known.values()) == list(range(1, len(expected) + 1))
        assert orders.scored[row] == len(expected)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_score_that_is_not_finite_is_refused(value: float) -> None:
    with pytest.raises(ValueError, match="score:x holds a value that is not finite"):
        read_orders(pl.DataFrame({"score:x": [1.0, value]}), ("x",))


def test_a_column_that_is_missing_is_named() -> None:
    with pytest.raises(ValueError, match="no column score:x"):
        read_orders(frame(), ("a", "x"))


GIVEN = frame().sort("sample_id")
SCORES = {name: slow.scores_of(GIVEN, name) for name in NAMES}


def test_correlations_are_those_of_plain_loops_over_common_samples() -> None:
    found = compare_pairs(read_orders(GIVEN, NAMES), levels(60))
    assert [(pair.first, pair.second) for pair in found] == list(itertools.combinations(NAMES, 2))
    for pair in found:
        one, two = SCORES[pair.first], SCORES[pair.second]
        assert pair.common == len(set(one) & set(two))
        for got, expected in ((pair.spearman, slow.spearman(one, two)), (pair.kendall, slow.kendall(one, two))):
            if expected is None:
                assert got is None
            else:
                assert got == pytest.approx(expected, abs=1e-12)
    assert sum(pair.spearman is None for pair in found) == 7  # every pair with `nothing` or `flat`


@pytest.mark.parametrize("nulls", [0.2, 0.85])
def test_overlaps_are_those_of_sets(nulls: float) -> None:
    given = frame(nulls=nulls).sort("sample_id")
    for pair in compare_pairs(read_orders(given, NAMES), levels(60, 7)):
        orders = [slow.order(slow.scores_of(given, name)) for name in (pair.first, pair.second)]
        assert [(level.share, level.wanted) for level in pair.overlaps] == [(0.1, 6), (0.3, 18), (0.5, 30), (None, 7)]
        for level in pair.overlaps:
            one, two = (set(order[: level.wanted]) for order in orders)
            assert level.common == len(one & two)
            largest = max(len(one), len(two))
            assert level.overlap == (len(one & two) / largest if one and two else None)


def test_the_expected_overlap_is_the_mean_over_random_orders() -> None:
    given = frame(12, nulls=0.4).sort("sample_id")
    orders = read_orders(given, ("b", "c"))
    found = compare_pairs(orders, levels(12, shares=(0.3,)))[0].overlaps[0]
    sets = [slow.order(slow.scores_of(given, name)) for name in ("b", "c")]
    drawn = [[set(each) for each in itertools.combinations(ids, min(found.wanted, len(ids)))] for ids in sets]
    common = [len(one & two) for one in drawn[0] for two in drawn[1]]
    largest = max(len(drawn[0][0]), len(drawn[1][0]))
    assert found.expected == pytest.approx(math.fsum(common) / len(common) / largest)
    assert found.expected != pytest.approx(0.3)  # what it would be had both scored all


def test_kendall_of_many_samples_is_taken_over_a_fixed_sample_of_them() -> None:
    rng = np.random.default_rng(1)
    one = rng.normal(size=20_000)
    two = one + rng.normal(size=20_000)
    exact, drawn = kendall(one, two), kendall(one, two, most=5000)
    assert exact is not None and drawn is not None
    assert drawn != exact
    assert drawn == pytest.approx(exact, abs=3 / math.sqrt(5000))
    assert drawn == kendall(one, two, most=5000)


def test_one_sample_has_no_order_and_levels_hold_at_least_one() -> None:
    found = compare_pairs(read_orders(frame(1, nulls=0), ("a", "c")), levels(1, 1))[0]
    assert (found.common, found.spearman, found.kendall) == (1, None, None)
    assert [(level.wanted, level.overlap, level.expected) for level in found.overlaps] == [(1, 1.0, 1.0)] * 4
