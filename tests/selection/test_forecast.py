"""Check the forecast of a choice against slow twins: token by token, sample by sample, and by plain arithmetic."""

import json
import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateau_dagster import tables
from gateau_dagster.config.selection import RuleConfig
from gateau_dagster.selection import forecast as module
from gateau_dagster.selection.evidence import DEPENDENT, token_sums
from gateau_dagster.selection.forecast import (
    FOUND,
    SPARED,
    Deficit,
    Estimated,
    Forecast,
    Slope,
    Slopes,
    choice_warnings,
    corrected_share,
    far_deficit,
    fitted_slope,
    forecast,
    mismatch,
    verdict,
)
from gateau_dagster.selection.rules import chosen_ids
from tests.kit.project import ROOT
from tests.selection.builders import ranking

FEW = RuleConfig(count=10)


def pool(size: int = 400, far: int = 40, *, seed: int = 0, sources: int = 1, far_first: bool = True) -> pl.DataFrame:
    """Samples of which `far` show far text: the best ones, or any."""
    rng = np.random.default_rng(seed)
    kinds = ["one_far"] * far + rng.choice(["near", "closed_book", "unpredictable"], size - far).tolist()
    if not far_first:
        rng.shuffle(kinds)
    names = [f"source {number % sources}" for number in range(size)]
    lengths = rng.integers(1, 50, size).tolist()
    return ranking(names, tokens=rng.integers(20, 90, size).tolist(), dependency=kinds, response_tokens=lengths)


def probabilities(count: int, *, seed: int = 0, deficit: float = 0.2) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Rows of `cam` and of theta_B's table; every second sample has tokens that depend on far text."""
    rng = np.random.default_rng(seed)
    rows: list[dict[str, Any]] = []
    for number in range(count):
        tokens = int(rng.integers(1, 9))
        none, near, far = rng.uniform(0, 0.6, (3, tokens))
        far = far + 0.3 if number % 2 else far * 0.2
        whole = np.clip(np.maximum(far, near) - deficit + rng.normal(0, 0.05, tokens), 0, 1)
        rows.append(
            {
                "sample_id": f"s{number:03d}",
                "no_context_probability": none,
                "near_probability": np.maximum(none, near),
                "far_probability": far,
                "token_probability": whole,
            }
        )
    kinds = {name: kind for name, kind in tables.schema((*tables.CAM, *tables.PERPLEXITY)).items() if name in rows[0]}
    frame = pl.DataFrame(rows, schema=kinds)
    return frame.drop("token_probability"), frame.select("sample_id", "token_probability").reverse()


def slow_sums(cam: pl.DataFrame, long: pl.DataFrame) -> dict[str, tuple[int, float, int, float]]:
    """`token_sums`, token by token."""
    whole, found = dict(long.iter_rows()), {}
    for name, none, near, far in cam.iter_rows():
        far_tokens = near_tokens = 0
        far_sum = near_sum = 0.0
        for none_t, near_t, far_t, p in zip(none, near, far, whole[name], strict=True):
            if far_t - near_t >= DEPENDENT:
                far_tokens, far_sum = far_tokens + 1, far_sum + far_t - p
            if near_t - max(none_t, far_t) >= DEPENDENT:
                near_tokens, near_sum = near_tokens + 1, near_sum + near_t - p
        found[name] = (far_tokens, far_sum, near_tokens, near_sum)
    return found


def slow_kl(use: Mapping[str, float], have: Mapping[str, float]) -> float:
    """Bits that a code for `have` costs beyond one for `use`, for samples of `use`."""
    ideal = -sum(p * math.log2(p) for p in use.values() if p)
    return -sum(p * math.log2(have[name]) for name, p in use.items() if p) - ideal


def slow_strata(samples: pl.DataFrame) -> dict[str, tuple[str, int] | None]:
    """The source and the quarter of the response's length of each sample: the borders below it. Noise has none."""
    lengths = sorted(samples["response_tokens"].to_list())
    borders = [lengths[round(part * (len(lengths) - 1))] for part in (0.25, 0.5, 0.75)]
    return {
        row["sample_id"]: None
        if row["dependency"] == "unpredictable"
        else (row["source"], sum(row["response_tokens"] > border for border in borders))
        for row in samples.iter_rows(named=True)
    }


def test_the_counts_are_those_of_the_measured_figures() -> None:
    results = json.loads((ROOT / "docs/evidence/figures/real_dependencies.json").read_text())["results"]
    for place, model in enumerate(("SmolLM2", "Gemma-3")):
        counts = [found["counts"] for name, found in results.items() if name.startswith(model)]
        far, found, other, spared = 0, 0, 0, 0
        for table in counts:
            for truth, row in table.items():
                shown = row["one_far"] + row["several_far"]
                if truth in {"one_far", "several_far"}:
                    far, found = far + sum(row.values()), found + shown
                else:
                    other, spared = other + sum(row.values()), spared + sum(row.values()) - shown
        assert (found, far) == FOUND[place] and (spared, other) == SPARED[place]
        assert len(counts) == module._SIZES


@given(st.integers(1, 5000), st.data())
def test_shares_are_corrected_for_what_the_test_misses(total: int, data: st.DataObject) -> None:
    seen = data.draw(st.integers(0, total))
    found = corrected_share(seen, total)
    assert 0 <= found.low <= found.value <= found.high <= 1
    assert corrected_share(seen, total) == found
    sensitivity, specificity = (sum(a for a, _ in pair) / sum(b for _, b in pair) for pair in (FOUND, SPARED))
    shown = found.value * sensitivity + (1 - found.value) * (1 - specificity)
    assert shown == pytest.approx(seen / total) or found.value in {0.0, 1.0}, "what a pool of this share shows"


def test_more_samples_narrow_the_interval_only_as_far_as_the_test_is_known() -> None:
    widths = [found.high - found.low for found in (corrected_share(5 * n, 100 * n) for n in (1, 10, 1000))]
    assert widths[0] > widths[1] > widths[2] > 0.005


def test_the_interval_covers_the_share_in_95_of_100_pools() -> None:
    """Pools drawn from a test with other rates, of which as many samples were counted as of the real one."""
    rng, covered = np.random.default_rng(1), 0
    for trial in range(100):
        sensitivity, specificity, share = rng.beta(176, 139), rng.beta(349, 2), 0.15
        shown = share * sensitivity + (1 - share) * (1 - specificity)
        found = corrected_share(int(rng.binomial(500, shown)), 500, seed=trial)
        covered += found.low <= share <= found.high
    assert covered >= 90


@given(st.floats(0.001, 0.999), st.floats(0.001, 0.999))
def test_the_mismatch_is_the_extra_length_of_a_code(use: float, have: float) -> None:
    slow = slow_kl({"far": use, "rest": 1 - use}, {"far": have, "rest": 1 - have})
    assert mismatch(use, have) == pytest.approx(slow, abs=1e-9)
    assert mismatch(use, have) >= -1e-12 and mismatch(use, use) == 0


def test_the_mismatch_has_its_limits() -> None:
    assert mismatch(0.5, 0.0) == math.inf and mismatch(0.0, 0.0) == 0 and mismatch(0.0, 0.5) == 1


def test_tokens_that_depend_on_far_and_near_text_are_summed() -> None:
    cam, long = probabilities(60)
    found = token_sums(cam, long)
    columns = ("far_tokens", "far_sum", "near_tokens", "near_sum")
    for row in found.iter_rows(named=True):
        assert tuple(row[name] for name in columns) == pytest.approx(slow_sums(cam, long)[row["sample_id"]])
    assert found.height == 60 and found["far_tokens"].sum() > 20 < found["near_tokens"].sum()


def test_the_deficit_is_the_mean_over_tokens_beside_its_control() -> None:
    cam, long = probabilities(80)
    slow = slow_sums(cam, long).values()
    found = far_deficit(token_sums(cam, long))
    assert found.far is not None and found.near is not None and found.beyond is not None
    assert found.far.value == pytest.approx(sum(each[1] for each in slow) / sum(each[0] for each in slow))
    assert found.near.value == pytest.approx(sum(each[3] for each in slow) / sum(each[2] for each in slow))
    assert found.beyond.value == pytest.approx(found.far.value - found.near.value)
    assert found.far.low < 0.2 < found.far.high
    assert (found.far_tokens, found.near_tokens) == tuple(sum(each[place] for each in slow) for place in (0, 2))


def test_the_interval_of_the_deficit_is_that_of_resampled_samples() -> None:
    sums = token_sums(*probabilities(40))
    rows, rng = sums.filter(pl.col("far_tokens") > 0).select("far_sum", "far_tokens").rows(), np.random.default_rng(5)
    slow = []
    for _ in range(2000):
        drawn = [rows[place] for place in rng.integers(len(rows), size=len(rows))]
        slow.append(sum(each[0] for each in drawn) / sum(each[1] for each in drawn))
    low, high = np.quantile(slow, (0.025, 0.975))
    found = far_deficit(sums).far
    assert (
        found is not None and found.low == pytest.approx(low, abs=0.01) and found.high == pytest.approx(high, abs=0.01)
    )


def test_many_samples_are_resampled_in_groups_and_few_say_little() -> None:
    sums = token_sums(*probabilities(3000))
    many, some = far_deficit(sums).far, far_deficit(sums.head(900)).far
    assert many is not None and some is not None and many.high - many.low < 0.8 * (some.high - some.low)
    one = far_deficit(sums.filter(pl.col("far_tokens") > 0).head(1).with_columns(near_tokens=0, near_sum=0.0))
    assert one.far is not None and (one.far.low, one.far.high) == (-1, 1)
    assert one.near is None and one.beyond is None
    control = pl.int_range(pl.len()).over("has_near") == 0
    alone = sums.with_columns(has_near=pl.col("near_tokens") > 0).filter(~pl.col("has_near") | control)
    beyond = far_deficit(alone).beyond
    assert beyond is not None and beyond.low == -1, "one sample is no control"
    none = far_deficit(sums.clear())
    assert none == Deficit(far=None, near=None, beyond=None, far_tokens=0, near_tokens=0, far_samples=0)


def test_the_slope_joins_the_models_of_a_store_with_the_prior() -> None:
    assert fitted_slope([10, 20], [1, 0.9]) is None and fitted_slope([10, 10, 10], [1, 1, 0.9]) is None
    samples = [1, 3, 7, 15, 31, 63]  # doublings of one more
    exact = fitted_slope(samples, [2 - 0.12 * place for place in range(6)])
    assert exact is not None and exact.mean == pytest.approx(0.12) and exact.deviation < 1e-3
    rng = np.random.default_rng(0)
    noisy = fitted_slope(samples, [2 - 0.12 * place + rng.normal(0, 0.2) for place in range(6)])
    assert noisy is not None and exact.deviation < noisy.deviation < module.SLOPE_DEVIATION
    # Three models have one degree of freedom, which hardly moves the prior.
    three = fitted_slope([1, 3, 7], [2, 1.7, 1.6])
    assert three is not None and three.deviation > 0.8 * module.SLOPE_DEVIATION


def test_counts_and_coverage_are_those_of_a_loop() -> None:
    samples, rule = pool(sources=3), RuleConfig(fraction=0.2)
    found = forecast(samples, rule, token_sums(*probabilities(20)))
    ids, strata = chosen_ids(samples, rule), slow_strata(samples)
    kinds = dict(samples.select("sample_id", "dependency").iter_rows())
    assert (found.samples, found.seen, found.unknown, found.chosen) == (400, 40, 0, 80)
    assert found.chosen_far == sum(kinds[name] == "one_far" for name in ids) == 40
    every = {*strata.values()} - {None}
    assert found.covered == len({strata[name] for name in ids} - {None}) / len(every) == found.covered_top
    rng, drawn = np.random.default_rng(0), []
    names = samples["sample_id"].to_list()
    for _ in range(400):
        some = [names[place] for place in rng.permutation(len(names))[:80]]
        drawn.append(
            (sum(kinds[name] == "one_far" for name in some), len({strata[name] for name in some} - {None}) / len(every))
        )
    far, covered = np.mean(drawn, axis=0)
    assert found.random_far.value == pytest.approx(far, abs=0.8) and far == pytest.approx(8, abs=0.5)
    assert found.covered_random == pytest.approx(covered, abs=0.02)
    assert found.enrichment == pytest.approx(40 / found.random_far.value)
    assert found.supply == pytest.approx(40 / (found.use * 80))


def test_noise_is_no_response_to_cover() -> None:
    """`mix` leaves it out on purpose, so a source of noise must not count against it."""
    samples = pool(60, 20).with_columns(source=pl.col("dependency"))
    found = forecast(samples, RuleConfig(rule="mix", fraction=0.9, use={"far": 0.5}), token_sums(*probabilities(5)))
    noise = {name for name, kind in samples.select("sample_id", "dependency").iter_rows() if kind == "unpredictable"}
    assert noise and found.covered == 1 and found.chosen <= 60 - len(noise)


def test_random_choices_have_as_many_tokens() -> None:
    samples, rule = pool(), RuleConfig(rule="token_budget", budget=2000)
    found = forecast(samples, rule, token_sums(*probabilities(20)))
    cost = dict(samples.select("sample_id", "tokens").iter_rows())
    ids = chosen_ids(samples, rule)
    assert found.unit == "tokens" and found.amount == sum(cost[name] for name in ids) <= 2000
    rows, rng, drawn = samples.select("tokens", "dependency").rows(), np.random.default_rng(0), []
    for _ in range(300):
        spent = far = 0
        for place in rng.permutation(len(rows)):
            spent += rows[place][0]
            if spent > found.amount:
                break
            far += rows[place][1] == "one_far"
        drawn.append(far)
    assert found.random_far.value == pytest.approx(np.mean(drawn), abs=0.5)
    assert found.random_far.low <= np.quantile(drawn, 0.1) and found.random_far.high >= np.quantile(drawn, 0.9)


def test_clusters_take_the_place_of_sources_and_lengths() -> None:
    samples = pool().with_columns(cluster=pl.int_range(pl.len()) % 7)
    found = forecast(samples, RuleConfig(count=3), token_sums(*probabilities(5)))
    assert (found.strata, found.covered) == ("response clusters", 3 / 7)


def test_the_change_follows_the_doublings_of_each_class() -> None:
    samples, rule = pool(1000, 60), RuleConfig(count=100)
    slopes = Slopes(far=Slope(mean=0.06, deviation=0.01), rest=Slope(mean=0.04, deviation=0.01), grounds="measured")
    found = forecast(samples, rule, token_sums(*probabilities(20)), use=0.5, slopes=slopes)
    sensitivity, specificity = (sum(a for a, _ in pair) / sum(b for _, b in pair) for pair in (FOUND, SPARED))
    p = found.far.value
    right = sensitivity * p / (sensitivity * p + (1 - specificity) * (1 - p))
    missed = (1 - sensitivity) * p / ((1 - sensitivity) * p + specificity * (1 - p))
    # 60 of the 100 chosen show far text; of 100 random ones, about 6 do.
    chosen, drawn = (far * right + (100 - far) * missed for far in (60, found.random_far.value))
    far_change = -0.06 * math.log2((chosen + 1) / (drawn + 1))
    rest_change = -0.04 * math.log2((100 - chosen + 1) / (100 - drawn + 1))
    assert found.far_change.value == pytest.approx(far_change, abs=0.003) and far_change < -0.1
    assert found.rest_change.value == pytest.approx(rest_change, abs=0.003) and rest_change > 0
    assert found.use_change.value == pytest.approx((far_change + rest_change) / 2, abs=0.003)
    for change in (found.far_change, found.rest_change, found.use_change):
        assert change.low < change.value < change.high
    assert found.grounds == "measured"


@pytest.mark.parametrize("missed", [0, 30])
def test_known_labels_say_what_the_test_misses(missed: int) -> None:
    """Against counts of labels: 80 of 400 samples need far text, and 80 - missed of them show it."""
    needs = [number < 80 for number in range(400)]
    kinds = ["one_far" if number < 80 - missed or number >= 390 else "near" for number in range(400)]
    samples = pool().with_columns(
        source=pl.Series(["far" if need else "other" for need in needs]), dependency=pl.Series(kinds)
    )
    slopes = Slopes(far=Slope(deviation=0.0), rest=Slope(deviation=0.0))
    given: dict[str, Any] = {"rule": RuleConfig(count=100), "sums": token_sums(*probabilities(5)), "slopes": slopes}
    found = forecast(samples, **given, ground_truth=["far", "absent"])
    assert found.far_known and found.far == Estimated(value=0.2, low=0.2, high=0.2) and found.seen == 90 - missed
    assert found.mismatch.value == pytest.approx(slow_kl({"far": 0.5, "rest": 0.5}, {"far": 0.2, "rest": 0.8}))
    # What shows far text and needs it, of all that shows it; what needs it without showing it, of all others.
    right, lost = (80 - missed) / (90 - missed), missed / (310 + missed)
    chosen, drawn = (far * right + (100 - far) * lost for far in (80 - missed, found.random_far.value))
    assert found.far_change.value == pytest.approx(-0.04 * math.log2((chosen + 1) / (drawn + 1)))
    assert found.far_change.low == found.far_change.value == found.far_change.high
    # A use by sources is corrected by what is counted on the pool: 6 of 10 samples show far text.
    kinds, of_use = ["one_far"] * 6 + ["near"] * 4, samples.head(10)
    of_use = of_use.with_columns(
        sample_id="u" + pl.col("sample_id"),
        digest="u" + pl.col("digest"),
        source=pl.lit("use"),
        dependency=pl.Series(kinds),
    )
    by_use = forecast(
        pl.concat([samples, of_use]),
        **(given | {"rule": RuleConfig(count=100, rule="mix", use=["use"])}),
        ground_truth=["far"],
    )
    sensitivity, specificity = (80 - missed) / 80, 310 / 320
    assert by_use.use == pytest.approx(min(1.0, (0.6 + specificity - 1) / (sensitivity + specificity - 1)))
    # The choice does not depend on the labels, and labels that separate nothing are no labels.
    blind = forecast(samples, **given)
    assert (found.chosen, found.chosen_far, found.random_far) == (blind.chosen, blind.chosen_far, blind.random_far)
    assert not blind.far_known and forecast(samples, **given, ground_truth=["far", "other"]) == blind


def test_a_random_choice_changes_nothing() -> None:
    found = forecast(pool(far_first=False), RuleConfig(count=100), token_sums(*probabilities(20)))
    assert abs(found.far_change.value) < 0.03 and abs(found.use_change.value) < 0.02
    assert found.verdict == "level"


def test_the_use_is_half_far_unless_the_pool_needs_more() -> None:
    sums = token_sums(*probabilities(5))
    few, many = forecast(pool(400, 20), FEW, sums), forecast(pool(400, 200), FEW, sums)
    assert (few.use, few.use_given) == (0.5, False) and many.use == many.far.value > 0.8
    told = forecast(pool(400, 20), FEW, sums, use=0.2)
    assert (told.use, told.use_given) == (0.2, True)


def test_what_has_no_class_and_repeated_texts_do_not_count_twice() -> None:
    samples = pool(100, 10)
    unknown = samples.with_columns(dependency=pl.when(pl.col("rank") > 90).then(None).otherwise("dependency"))
    found = forecast(unknown, FEW, token_sums(*probabilities(5)))
    assert (found.samples, found.unknown, found.seen) == (100, 10, 10)
    again = samples.with_columns(sample_id=pl.format("{}b", "sample_id"), rank=pl.col("rank") + 100)
    twice = pl.concat([samples, again.with_columns(score=pl.col("score") - 2)])
    assert forecast(twice, FEW, token_sums(*probabilities(5))) == forecast(samples, FEW, token_sums(*probabilities(5)))


@pytest.mark.parametrize("far", [0, 300])
def test_a_pool_of_one_class_has_a_forecast(far: int) -> None:
    found = forecast(pool(300, far), FEW, token_sums(*probabilities(5)).clear())
    assert found.verdict in {"level", "do_not_select"}
    assert (found.enrichment is None) == (far == 0)


GOOD = Estimated(value=0.2, low=0.1, high=0.3)


def paying() -> Forecast:
    found = forecast(pool(1000, 60), RuleConfig(count=100), token_sums(*probabilities(20)), use=0.6)
    return replace(
        found, deficit=replace(found.deficit, far=GOOD, near=GOOD, beyond=GOOD), covered=0.9, covered_random=1
    )


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, "pays"),
        ({"covered": 0.79}, "do_not_select"),
        ({"chosen_share": 0.66}, "do_not_select"),
        ({"mismatch": Estimated(value=0.3, low=0, high=1)}, "level"),
        ({"enrichment": 2.9}, "level"),
        ({"enrichment": None}, "pays"),  # random choices hold no far sample
        ({"enrichment": None, "chosen_far": 0}, "level"),
        ({"supply": 0.24}, "level"),
        ({"trains_other": True}, "level"),
        ({"deficit": replace(far_deficit(token_sums(*probabilities(4)).clear()))}, "level"),
        ({"deficit": Deficit(far=GOOD, near=None, beyond=None, far_tokens=9, near_tokens=0, far_samples=3)}, "level"),
        (
            {
                "deficit": Deficit(
                    far=GOOD, near=GOOD, beyond=replace(GOOD, low=0.05), far_tokens=9, near_tokens=9, far_samples=3
                )
            },
            "level",
        ),
    ],
)
def test_the_verdict_follows_its_thresholds(change: dict[str, Any], expected: str) -> None:
    word, reasons = verdict(replace(paying(), **change))
    assert word == expected and len(reasons) == 1


def test_all_that_is_against_a_choice_is_named() -> None:
    assert len(verdict(replace(paying(), covered=0.1, chosen_share=1.0))[1]) == 2
    assert len(verdict(replace(paying(), enrichment=1.0, supply=0.0))[1]) == 2


FAR_CHOICE = pl.Series(["one_far"] * 91 + ["near"] * 9)


@pytest.mark.parametrize(
    ("rule", "kinds", "has_chats", "count"),
    [
        (RuleConfig(count=100), FAR_CHOICE, False, 1),
        (RuleConfig(rule="token_budget", budget=9), FAR_CHOICE, False, 1),
        (RuleConfig(count=100), FAR_CHOICE, True, 0),
        (RuleConfig(count=100), FAR_CHOICE.tail(90), False, 0),
        (RuleConfig(count=100), FAR_CHOICE.clear(), False, 0),
        (RuleConfig(rule="per_source", count=100), FAR_CHOICE, False, 0),
        (RuleConfig(fraction=0.31), FAR_CHOICE, True, 1),
        (RuleConfig(fraction=0.29), FAR_CHOICE, True, 0),
        (RuleConfig(fraction=0.31), FAR_CHOICE, False, 2),
        (RuleConfig(rule="per_source", fraction=0.9), FAR_CHOICE, True, 0),
    ],
)
def test_a_choice_of_far_text_only_is_warned_of(
    rule: RuleConfig, kinds: pl.Series, has_chats: bool, count: int
) -> None:
    far = Estimated(value=0.25, low=0.2, high=0.3)
    assert len(choice_warnings(rule, kinds, far=far, has_chats=has_chats)) == count
    assert len(choice_warnings(rule, kinds, has_chats=has_chats)) <= 1
