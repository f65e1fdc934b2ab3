"""What all rules have in common, and what is known before any model runs."""

import re
from collections import Counter
from fractions import Fraction
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateau_dagster.config import SelectionConfig
from gateau_dagster.config.selection import RuleConfig
from gateau_dagster.errors import GateauError
from gateau_dagster.selection.rules import (
    check_data,
    chosen_ids,
    countable_samples,
    left_out,
    most_by_source,
    most_of_all,
)
from gateau_dagster.selection.token_budget import equal_amount, largest_remainder, source_counts
from tests.kit.error_codes import refused
from tests.selection.builders import (
    Row,
    ranking,
    slow_largest_remainder,
    slow_order,
    slow_per_source_tokens,
    slow_token_budget,
)

RULES = [
    RuleConfig(fraction=0.3),
    RuleConfig(count=7),
    RuleConfig(rule="token_budget", budget=150),
    RuleConfig(rule="per_source", fraction=0.5, short_source="share"),
    RuleConfig(rule="per_source_tokens", budget=200, short_source="share"),
    RuleConfig(rule="diverse", count=4, encoder="mini", clusters=3),
    RuleConfig(rule="ccs", count=9),
]


def many(seed: int = 3, size: int = 40) -> pl.DataFrame:
    rng = np.random.default_rng(seed)
    return ranking(
        rng.choice(["law", "web", "wiki"], size, p=[0.6, 0.3, 0.1]).tolist(),
        tokens=rng.integers(1, 30, size).tolist(),
        unscored={2, 17, 30},
        embedding=rng.normal(size=(size, 6)).astype(np.float32).tolist(),
    )


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.rule)
def test_the_order_of_the_rows_does_not_matter(rule: RuleConfig) -> None:
    samples = many()
    found = chosen_ids(samples, rule)
    for seed in range(3):
        assert chosen_ids(samples.sample(fraction=1, shuffle=True, seed=seed), rule) == found
    order = [row["sample_id"] for row in slow_order(samples)]
    assert found == [one for one in order if one in set(found)] and 0 < len(found) < len(order)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.rule)
def test_equal_ranks_are_in_the_order_of_the_ids(rule: RuleConfig) -> None:
    samples = many().with_columns(rank=pl.when(pl.col("score").is_not_null()).then(pl.lit(1, pl.Int32)))
    found = chosen_ids(samples.sample(fraction=1, shuffle=True, seed=5), rule)
    assert found == sorted(found) == chosen_ids(samples, rule)


@pytest.mark.parametrize(
    ("rule", "wanted"),
    [(RuleConfig(fraction=0.3), 3), (RuleConfig(count=2), 2), (RuleConfig(count=50), 10), (RuleConfig(), 1)],
)
def test_top_takes_the_best(rule: RuleConfig, wanted: int) -> None:
    samples = ranking(["law"] * 12, unscored={0, 5})
    assert chosen_ids(samples, rule) == [row["sample_id"] for row in slow_order(samples)][:wanted]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.rule)
def test_without_a_score_nothing_can_be_chosen(rule: RuleConfig) -> None:
    with refused("selection.no_scores"):
        chosen_ids(many().with_columns(score=pl.lit(None, pl.Float64)), rule)


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ({"rule": "diverse", "encoder": "mini", "clusters": 101}, "100 samples cannot form 101 clusters"),
        (
            {"rule": "per_source", "count": 40, "shares": {"law": 1, "books": 1}},
            "the data has no source 'books'; there are law, web",
        ),
        (
            {"rule": "per_source", "count": 40, "shares": {"law": 1, "web": 1}},
            r"source 'web' has 10 samples, but its share of 40 is 20\. Lower selection\.count or fraction, change",
        ),
    ],
)
def test_what_the_data_cannot_give_is_known_before_any_score(rule: dict[str, Any], message: str) -> None:
    with pytest.raises(GateauError, match=message):
        check_data({"law": 90, "web": 10}, RuleConfig.model_validate(rule))


@pytest.mark.parametrize("rule", [*RULES, RuleConfig(rule="per_source", count=500)], ids=lambda rule: rule.rule)
def test_data_that_is_enough_passes(rule: RuleConfig) -> None:
    check_data({"law": 90, "web": 10}, rule)


def by_tokens(budget: int, rule: str = "token_budget", short_source: str = "error") -> RuleConfig:
    fields = {"rule": rule, "budget": budget, "short_source": short_source}
    return RuleConfig.model_validate({key: value for key, value in fields.items() if value != "error"})


@pytest.mark.parametrize("rule", ["token_budget", "per_source_tokens"])
def test_a_budget_below_the_first_sample_is_an_error(rule: str) -> None:
    with refused("selection.budget", r"selection\.budget.*19.*20"):
        chosen_ids(ranking(["law"] * 4, tokens=[20, 10, 5, 4]), by_tokens(19, rule))


def test_many_long_samples_do_not_overflow() -> None:
    samples = ranking(["law"] * 4, tokens=[2**31 - 1] * 4)
    assert len(chosen_ids(samples, by_tokens(3 * 2**31))) == 3


@pytest.mark.parametrize("seed", range(4))
def test_both_rules_are_as_their_plain_loops(seed: int) -> None:
    rng = np.random.default_rng(seed)
    samples = ranking(
        rng.choice(["law", "web", "wiki"], 60, p=[0.5, 0.3, 0.2]).tolist(),
        tokens=rng.integers(1, 30, 60).tolist(),
        unscored=set(rng.integers(0, 60, 8).tolist()),
    ).with_columns(sample_id=pl.Series([f"s{number:02d}" for number in rng.permutation(60)]))
    best = [row["tokens"] for row in slow_order(samples)]
    borders = [sum(best[:count]) + more for count in (1, 2, 7, 30) for more in (-1, 0, 1)]
    for budget in [*[each for each in borders if each >= best[0]], 150, 333, 700, 2000]:
        assert chosen_ids(samples, by_tokens(budget)) == slow_token_budget(samples, budget)
        shared = by_tokens(budget, "per_source_tokens", "share")
        if wanted := slow_per_source_tokens(samples, budget):
            assert chosen_ids(samples, shared) == wanted


def test_a_source_that_is_used_up_is_named() -> None:
    samples = ranking(["law"] * 8 + ["web"] * 4, unscored={10, 11})
    assert len(chosen_ids(samples, by_tokens(60, "per_source_tokens"))) == 6, "half of web has a score"
    with refused("selection.too_few", "'web'.*2.*4"):
        chosen_ids(samples, by_tokens(90, "per_source_tokens"))
    shared = chosen_ids(samples, by_tokens(90, "per_source_tokens", "share"))
    assert shared == [f"s{number:02d}" for number in [0, 1, 2, 3, 4, 5, 6, 8, 9]]
    everything = chosen_ids(samples, by_tokens(100, "per_source_tokens"))
    assert everything == samples.filter(pl.col("score").is_not_null())["sample_id"].to_list()


def test_a_sample_whose_tokens_are_not_known_is_passed_over() -> None:
    samples = ranking(["law"] * 4 + ["web"] * 8).with_columns(
        tokens=pl.when(~pl.col("sample_id").is_in(["s00", "s01"])).then("tokens")
    )
    assert chosen_ids(samples, by_tokens(20)) == ["s02", "s03"]
    assert chosen_ids(samples, by_tokens(30, "per_source_tokens")) == ["s02", "s04", "s05"]
    with refused("selection.too_few", "'law'.*2.*4"):
        chosen_ids(samples, by_tokens(90, "per_source_tokens"))
    assert len(chosen_ids(samples, by_tokens(90, "per_source_tokens", "share"))) == 9
    with refused("selection.no_scores"):
        chosen_ids(samples.head(2), by_tokens(20))


# Ten candidates, of which the method scores six; 100 tokens in all.
TOKENS = [5, 5, 10, 10, 10, 10, 10, 10, 20, 10]
SAMPLES = pl.DataFrame(
    {
        "sample_id": [f"s{number}" for number in range(10)],
        "source": ["a"] * 10,
        "digest": [f"t{number}" for number in range(10)],
        "score": [float(10 - number) if number < 6 else None for number in range(10)],
        "rank": [number + 1 if number < 6 else None for number in range(10)],
        "tokens": TOKENS,
    }
)


def chosen(equal: object, **rule: object) -> list[str]:
    selection = SelectionConfig.model_validate(rule)
    return chosen_ids(SAMPLES, equal_amount(selection, equal, SAMPLES))  # type: ignore[arg-type]


def test_a_fraction_of_the_scored_samples_of_all_of_them_and_of_their_tokens() -> None:
    assert chosen(None, fraction=0.5) == ["s0", "s1", "s2"]
    assert chosen("samples", fraction=0.5) == ["s0", "s1", "s2", "s3", "s4"]
    assert chosen("tokens", fraction=0.2) == ["s0", "s1", "s2"]
    assert chosen("steps", fraction=0.5) == chosen(None, fraction=0.5)


def test_as_many_as_there_are() -> None:
    assert len(chosen("samples", fraction=1.0)) == 6
    assert len(chosen("tokens", fraction=1.0)) == 6


@pytest.mark.parametrize("equal", [None, "samples", "tokens"])
def test_what_counts_so_already_stays(equal: object) -> None:
    for rule in ({"count": 2}, {"rule": "token_budget", "budget": 20}):
        selection = SelectionConfig.model_validate(rule)
        assert equal_amount(selection, equal, SAMPLES) is selection  # type: ignore[arg-type]


SOURCES = ["law"] * 12 + ["web"] * 6 + ["wiki"] * 2


def of_sources(ids: list[str], sources: list[str]) -> Counter[str]:
    return Counter(sources[int(one[1:])] for one in ids)


def test_each_source_gives_its_share_of_the_best() -> None:
    found = chosen_ids(ranking(SOURCES), RuleConfig(rule="per_source", count=10))
    assert found == [f"s{number:02d}" for number in [0, 1, 2, 3, 4, 5, 12, 13, 14, 18]]
    fraction = chosen_ids(ranking(SOURCES), RuleConfig(rule="per_source", fraction=0.5))
    assert fraction == found


def test_shares_of_the_configuration_replace_those_of_the_data() -> None:
    rule = RuleConfig(rule="per_source", count=5, shares={"web": 0.5, "wiki": 0.5})
    assert of_sources(chosen_ids(ranking(SOURCES), rule), SOURCES) == {"web": 3, "wiki": 2}


@pytest.mark.parametrize("seed", range(5))
def test_largest_remainder_against_whole_numbers(seed: int) -> None:
    rng = np.random.default_rng(seed)
    weights = {f"source {number}": int(rng.integers(1, 40)) if seed else 1 for number in rng.permutation(7)}
    for count in [0, 1, 5, 6, 7, 50, 333]:
        found = largest_remainder({name: Fraction(weight) for name, weight in weights.items()}, count)
        assert found == slow_largest_remainder(weights, count)
        assert sum(found.values()) == count


def test_a_source_with_too_few_scored_samples_is_named_with_the_cure() -> None:
    samples = ranking(SOURCES, unscored=set(range(13, 18)))
    with refused("selection.too_few", "'web'.*1.*6.*10.*3.*short_source"):
        chosen_ids(samples, RuleConfig(rule="per_source", count=10))


def test_what_a_short_source_lacks_goes_to_the_others_in_proportion() -> None:
    samples = ranking(SOURCES, unscored=set(range(13, 18)))
    found = chosen_ids(samples, RuleConfig(rule="per_source", count=10, short_source="share"))
    assert of_sources(found, SOURCES) == {"law": 8, "web": 1, "wiki": 1}
    everything = chosen_ids(samples, RuleConfig(rule="per_source", count=15, short_source="share"))
    assert everything == [row["sample_id"] for row in slow_order(samples)]


def test_sharing_goes_on_while_it_makes_further_sources_short() -> None:
    rule = RuleConfig(rule="per_source", count=30, short_source="share")
    counts = {"a": 100, "b": 100, "c": 100}
    found = source_counts(counts, {"a": 2, "b": 12, "c": 90}, rule, count=30)
    assert found == {"a": 2, "b": 12, "c": 16}
    assert source_counts(counts, {"a": 2, "b": 3, "c": 4}, rule, count=30) == {"a": 2, "b": 3, "c": 4}


def excluding(seed: int) -> pl.DataFrame:
    """The samples of `many` with classes of dependency and few documents; some have the text of another one."""
    frame, rng = many(seed), np.random.default_rng(seed)
    texts, documents = rng.integers(0, 25, frame.height), rng.integers(0, 12, frame.height)
    kinds = ["closed_book", "one_far", "unpredictable", None]
    return frame.with_columns(
        digest=pl.Series([f"t{number}" for number in texts]),
        document=pl.Series([f"d{number}" for number in documents]),
        dependency=pl.Series([kinds[number] for number in rng.integers(0, 4, frame.height)]),
    )


Excluded = dict[str, tuple[str, str]]


def slow_candidates(samples: pl.DataFrame, rule: RuleConfig) -> tuple[list[Row], Excluded]:
    """Return the rows from which the rule chooses, and the setting that excludes a sample, with what its reason names.

    Rows without a score are the last; one that loses its score is before these.
    """
    excluded: Excluded = {}
    scored = slow_order(samples)
    for row in scored:
        if row["dependency"] in rule.drop:
            excluded[row["sample_id"]] = ("selection.drop", row["dependency"])
    unscored = [row for row in samples.sort("sample_id").iter_rows(named=True) if row["score"] is None]
    rows = sorted([*scored, *unscored], key=lambda row: row["sample_id"] in excluded or row["score"] is None)
    if rule.duplicates == "one":
        first = {row["digest"]: row["sample_id"] for row in reversed(rows)}
        for row in rows:
            if row["sample_id"] != first[row["digest"]] and row["score"] is not None:
                excluded.setdefault(row["sample_id"], ("selection.duplicates", first[row["digest"]]))
        rows = [row for row in rows if row["sample_id"] == first[row["digest"]]]
    better: dict[str, list[str]] = {}
    for row in rows:
        if row["score"] is None or row["sample_id"] in excluded:
            continue
        best = better.setdefault(row["document"], [])
        if len(best) >= (rule.per_document or len(rows)):
            excluded[row["sample_id"]] = ("selection.per_document", best[0])
        best.append(row["sample_id"])
    return rows, excluded


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.rule)
@settings(max_examples=20)
@given(
    seed=st.integers(0, 1000),
    per_document=st.sampled_from([None, 1, 2, 5, 40]),
    duplicates=st.sampled_from(["one", "keep"]),
    drop=st.sampled_from([[], ["closed_book"], ["closed_book", "unpredictable"]]),
)
def test_a_rule_chooses_from_the_candidates_as_it_does_from_all(
    rule: RuleConfig, seed: int, per_document: int | None, duplicates: str, drop: list[str]
) -> None:
    """A fraction is of all samples with a score, and every sample that is excluded has its reason."""
    more = {"per_document": per_document, "duplicates": duplicates, "drop": drop}
    samples, limited = excluding(seed), RuleConfig.model_validate(rule.model_dump() | more)
    rows, excluded = slow_candidates(samples, limited)
    left = samples.filter(pl.col("sample_id").is_in([row["sample_id"] for row in rows])).with_columns(
        digest="sample_id", score=pl.when(~pl.col("sample_id").is_in([*excluded])).then("score")
    )
    wanted = 0 if rule.budget is not None else rule.chosen(samples["score"].count())
    chosen = chosen_ids(samples.sample(fraction=1, shuffle=True, seed=seed), limited)
    assert chosen == chosen_ids(left, rule.taking(count=wanted) if wanted else rule)
    out = left_out(samples, limited, chosen)
    assert out.rows["sample_id"].to_list() == sorted(excluded)
    for sample_id, reason in out.rows.iter_rows():
        setting, name = excluded[sample_id]
        assert reason.startswith(f"{setting}: ") and re.search(rf"\b{name}\b", reason)
    by_setting = Counter(setting for setting, _ in excluded.values())
    assert (out.dropped, out.repeats) == (by_setting["selection.drop"], by_setting["selection.duplicates"])
    assert out.beyond_the_best == by_setting["selection.per_document"]
    ids = [row["sample_id"] for row in rows]
    before = Counter(excluded[one][0] for one in ids[: ids.index(chosen[-1])] if one in excluded)
    assert out.passed_over == before["selection.per_document"]
    assert out.unfilled == max(0, wanted - (len(chosen) if per_document else left["score"].count()))


def limited(rule: RuleConfig, most: int) -> RuleConfig:
    return RuleConfig.model_validate(rule.model_dump() | {"per_document": most})


def test_a_source_that_the_limit_leaves_short_is_an_error_that_names_it() -> None:
    frame = ranking(["law"] * 6 + ["web"] * 6, document=["same"] * 6 + [f"d{n}" for n in range(6)])
    rule = limited(RuleConfig(rule="per_source", count=6), 1)
    with refused("selection.too_few", r"'law'.*1.*6.*selection\.per_document.*1"):
        chosen_ids(frame, rule)
    tokens = limited(RuleConfig(rule="per_source_tokens", budget=60), 1)
    with refused("selection.too_few", r"'law'.*1.*selection\.per_document.*1"):
        chosen_ids(frame, tokens)


def test_a_sample_that_cannot_be_chosen_takes_no_place() -> None:
    frame = ranking(["law", "web"] * 2, document=["a", "a", "b", "b"])
    uncounted = frame.with_columns(tokens=pl.when(pl.col("sample_id") != "s00").then("tokens"))
    tokens = RuleConfig(rule="token_budget", budget=100, per_document=1)
    assert chosen_ids(frame, tokens) == ["s00", "s02"] and chosen_ids(uncounted, tokens) == ["s01", "s02"]
    assert left_out(uncounted, tokens, ["s01", "s02"]).rows["sample_id"].to_list() == ["s03"]
    one_source = RuleConfig(rule="per_source", count=2, shares={"web": 1}, per_document=1)
    assert chosen_ids(frame, one_source) == ["s01", "s03"]
    assert left_out(frame, one_source, ["s01", "s03"]).rows.is_empty()


def test_what_documents_cannot_give_is_known_before_any_score() -> None:
    for seed, most in enumerate((1, 2, 5)):
        frame = excluding(seed)
        rows = frame.select("source", "document").rows()
        wanted = Counter({pair: min(count, most) for pair, count in Counter(rows).items()})
        by_source = {source: sum(wanted[pair] for pair in wanted if pair[0] == source) for source, _ in rows}
        assert most_by_source(frame, most) == by_source
        assert most_of_all(frame, most) == sum(min(n, most) for n in Counter(document for _, document in rows).values())
    rule = limited(RuleConfig(rule="per_source", count=6), 1)
    check_data({"law": 6, "web": 6}, rule, left={"law": 3, "web": 6})
    with refused("selection.too_few", "'law'.*2.*6.*6.*3"):
        check_data({"law": 6, "web": 6}, rule, left={"law": 2, "web": 6})


def test_a_repeated_text_that_cannot_be_chosen_takes_no_place() -> None:
    frame = ranking(["law", "web"] * 2, digest=["t", "t", "u", "u"])
    uncounted = frame.with_columns(tokens=pl.when(pl.col("sample_id") != "s00").then("tokens"))
    tokens = RuleConfig(rule="token_budget", budget=100)
    assert chosen_ids(frame, tokens) == ["s00", "s02"] and chosen_ids(uncounted, tokens) == ["s01", "s02"]
    assert chosen_ids(frame, RuleConfig(rule="per_source", count=2, shares={"web": 1})) == ["s01", "s03"]


def test_fewer_texts_than_are_asked_for_are_all_chosen_and_that_is_said() -> None:
    frame = ranking(["law"] * 6, digest=[*"aabbcc"])
    for rule in (RuleConfig(fraction=1), RuleConfig(count=5), RuleConfig(rule="per_source", fraction=1)):
        chosen = chosen_ids(frame, rule)
        assert chosen == ["s00", "s02", "s04"]
        out = left_out(frame, rule, chosen)
        assert (out.unfilled, out.repeats) == (rule.chosen(6) - 3, 3)
        assert out.rows["reason"][0].startswith("selection.duplicates: one: its texts are those of 's00'")


def test_what_different_texts_cannot_give_is_known_before_any_score() -> None:
    samples = pl.DataFrame({"source": ["law"] * 6 + ["web"] * 6, "digest": [*"abcdef"] + ["t"] * 5 + ["a"]})
    shares = {"rule": "per_source", "shares": {"law": 1, "web": 1}}
    check_data(*countable_samples(samples, RuleConfig.model_validate({**shares, "count": 4})))
    with refused("selection.too_few", "'web'.*2.*3"):
        check_data(*countable_samples(samples, RuleConfig.model_validate({**shares, "count": 6})))
    check_data(*countable_samples(samples, RuleConfig.model_validate({**shares, "count": 6, "duplicates": "keep"})))
    check_data(*countable_samples(samples, RuleConfig(rule="per_source", fraction=1)))
    with refused("selection.clusters", "9"):
        check_data(*countable_samples(samples, RuleConfig(rule="diverse", encoder="e", clusters=9)))
