"""Under every rule at most k samples of a document are chosen, the best of it, and the others are counted."""

import re
from collections import Counter

import numpy as np
import polars as pl
import pytest

from gateau_dagster.config.selection import RuleConfig
from gateau_dagster.selection.per_document import countable_samples, most_by_source, most_of_all
from gateau_dagster.selection.rules import check_data, chosen_ids, left_out
from tests.error_codes import refused
from tests.selection.slow_rules import (
    Row,
    ranking,
    slow_beyond_the_best,
    slow_order,
    slow_per_source_tokens,
    slow_token_budget,
)
from tests.selection.test_rules import RULES, many

LIMITS = (1, 2, 5)


def samples(seed: int = 3, documents: int = 12) -> pl.DataFrame:
    frame = many(seed)
    drawn = np.random.default_rng(seed + 100).integers(0, documents, frame.height)
    return frame.with_columns(document=pl.Series([f"d{number}" for number in drawn]))


def limited(rule: RuleConfig, most: int) -> RuleConfig:
    return RuleConfig.model_validate(rule.model_dump() | {"per_document": most})


@pytest.mark.parametrize("most", LIMITS)
@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.rule)
def test_no_document_gives_more_than_its_best(rule: RuleConfig, most: int) -> None:
    for seed in range(5):
        frame = samples(seed)
        found = chosen_ids(frame, limited(rule, most))
        order = [row["sample_id"] for row in slow_order(frame)]
        assert found and found == [one for one in order if one in set(found)], "best rank first"
        assert not slow_beyond_the_best(frame, most).keys() & set(found)
        of = dict(frame.select("sample_id", "document").iter_rows())
        assert max(Counter(of[one] for one in found).values()) <= most
        shuffled = frame.sample(fraction=1, shuffle=True, seed=seed)
        assert chosen_ids(shuffled, limited(rule, most)) == found


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.rule)
def test_a_limit_that_no_document_reaches_changes_nothing(rule: RuleConfig) -> None:
    frame = samples()
    assert chosen_ids(frame, limited(rule, 40)) == chosen_ids(frame, rule) == chosen_ids(frame.drop("document"), rule)
    assert left_out(frame, limited(rule, 40), chosen_ids(frame, rule)).rows.is_empty()


@pytest.mark.parametrize("most", LIMITS)
def test_the_rules_choose_from_what_is_left_as_they_do_from_all(most: int) -> None:
    for seed in range(5):
        frame = samples(seed)
        beyond = list(slow_beyond_the_best(frame, most))
        left = frame.with_columns(score=pl.when(~pl.col("sample_id").is_in(beyond)).then("score"))
        budget = RuleConfig(rule="token_budget", budget=150)
        assert chosen_ids(frame, limited(budget, most)) == slow_token_budget(left, 150)
        by_source = RuleConfig(rule="per_source_tokens", budget=100, short_source="share")
        assert chosen_ids(frame, limited(by_source, most)) == slow_per_source_tokens(left, 100)
        wanted = RuleConfig(fraction=0.3).chosen(37)
        best = [row["sample_id"] for row in slow_order(left)][:wanted]
        assert chosen_ids(frame, limited(RuleConfig(fraction=0.3), most)) == best


def test_quotas_of_sources_hold() -> None:
    frame = samples(documents=25)
    rule = RuleConfig(rule="per_source", count=12, short_source="share")

    def taken(ids: list[str]) -> dict[str, int]:
        return Counter(frame.filter(pl.col("sample_id").is_in(ids))["source"])

    assert taken(chosen_ids(frame, limited(rule, 2))) == taken(chosen_ids(frame, rule))


def test_a_source_that_the_limit_leaves_short_is_an_error_that_names_it() -> None:
    frame = ranking(["law"] * 6 + ["web"] * 6, document=["same"] * 6 + [f"d{n}" for n in range(6)])
    rule = limited(RuleConfig(rule="per_source", count=6), 1)
    with refused("selection.too_few", r"'law'.*1.*6.*selection\.per_document.*1"):
        chosen_ids(frame, rule)
    tokens = limited(RuleConfig(rule="per_source_tokens", budget=60), 1)
    with refused("selection.too_few", r"'law'.*1.*selection\.per_document.*1"):
        chosen_ids(frame, tokens)


@pytest.mark.parametrize("most", LIMITS)
def test_what_is_left_out_is_counted_with_its_reason(most: int) -> None:
    frame = samples()
    rule = limited(RuleConfig(fraction=0.4), most)
    chosen = chosen_ids(frame, rule)
    found = left_out(frame, rule, chosen)
    wanted = slow_beyond_the_best(frame, most)
    assert found.rows["sample_id"].to_list() == sorted(wanted)
    for sample_id, reason in found.rows.iter_rows():
        matched = re.fullmatch(r"selection\.per_document: (\d) samples? ranks? better .* '(s\d\d)'", reason)
        assert matched and matched.groups() == (str(most), wanted[sample_id])
    order = [row["sample_id"] for row in slow_order(frame)]
    assert found.passed_over == sum(order.index(one) < order.index(chosen[-1]) for one in wanted)
    assert found.unfilled == max(0, RuleConfig(fraction=0.4).chosen(37) - len(chosen))


def test_what_cannot_be_filled_is_said() -> None:
    frame = ranking(["law"] * 10, unscored={9}, document=["a"] * 5 + ["b"] * 5)
    rule = RuleConfig(fraction=0.5, per_document=2)
    chosen = chosen_ids(frame, rule)
    assert chosen == ["s00", "s01", "s05", "s06"]
    found = left_out(frame, rule, chosen)
    assert (found.unfilled, found.passed_over, found.rows.height) == (1, 3, 5)
    tokens = RuleConfig(rule="token_budget", budget=30, per_document=2)
    assert left_out(frame, tokens, chosen_ids(frame, tokens)).unfilled == 0


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
    for seed, most in enumerate(LIMITS):
        frame = samples(seed)
        rows = frame.select("source", "document").rows()
        wanted = Counter({pair: min(count, most) for pair, count in Counter(rows).items()})
        by_source = {source: sum(wanted[pair] for pair in wanted if pair[0] == source) for source, _ in rows}
        assert most_by_source(frame, most) == by_source
        assert most_of_all(frame, most) == sum(min(n, most) for n in Counter(document for _, document in rows).values())
    rule = limited(RuleConfig(rule="per_source", count=6), 1)
    check_data({"law": 6, "web": 6}, rule, left={"law": 3, "web": 6})
    with refused("selection.too_few", "'law'.*2.*6.*6.*3"):
        check_data({"law": 6, "web": 6}, rule, left={"law": 2, "web": 6})


def repeated(seed: int = 3) -> pl.DataFrame:
    """The samples of `many`, of which several have one text; a text may be in several sources."""
    frame = many(seed)
    drawn = np.random.default_rng(seed + 200).integers(0, 25, frame.height)
    return frame.with_columns(digest=pl.Series([f"t{number}" for number in drawn]))


def slow_one_of_each(samples: pl.DataFrame) -> list[Row]:
    """Those with a score, then the others; of each text the first."""
    order = slow_order(samples)
    rows = [*order, *(row for row in samples.sort("sample_id").iter_rows(named=True) if row["score"] is None)]
    first = {row["digest"]: row for row in reversed(rows)}
    return [row for row in rows if first[row["digest"]] is row]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.rule)
def test_one_of_identical_texts_is_chosen_and_others_fill_up_the_count(rule: RuleConfig) -> None:
    for seed in range(5):
        frame = repeated(seed)
        left = slow_one_of_each(frame)
        alone = frame.filter(pl.col("sample_id").is_in([row["sample_id"] for row in left]))
        found = chosen_ids(frame.sample(fraction=1, shuffle=True, seed=seed), rule)
        count = rule if rule.budget is not None else rule.taking(count=rule.chosen(frame["score"].count()))
        assert found == chosen_ids(alone, count)
        kept = chosen_ids(frame, rule.model_copy(update={"duplicates": "keep"}))
        assert kept == chosen_ids(frame.with_columns(digest="sample_id"), rule)
        if rule.rule == "top":
            assert len(found) == min(len(kept), alone["score"].count())
        out = left_out(frame, rule, found)
        scored = {row["sample_id"] for row in slow_order(frame)}
        assert {*out.rows["sample_id"]} == scored - {row["sample_id"] for row in left}
        assert (out.repeats, out.passed_over) == (out.rows.height, 0)


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


def test_documents_are_limited_among_different_texts() -> None:
    frame = ranking(["law"] * 5, digest=[*"aabcd"], document=["x"] * 4 + ["y"])
    rule = RuleConfig(fraction=1, per_document=2)
    chosen = chosen_ids(frame, rule)
    out = left_out(frame, rule, chosen)
    assert chosen == ["s00", "s02", "s04"]
    assert (out.rows["sample_id"].to_list(), out.repeats, out.passed_over) == (["s01", "s03"], 1, 1)


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
