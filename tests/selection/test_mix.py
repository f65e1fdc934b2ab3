"""Quotas by class of dependency and uniform draws against plain loops, and what holds for every pool."""

import math
import statistics
from collections import Counter
from fractions import Fraction
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateau_dagster.config.selection import CLASSES, RuleConfig
from gateau_dagster.selection.evidence import CLASS_OF
from gateau_dagster.selection.mix import by_score, with_shares_of_use
from gateau_dagster.selection.rules import check_data, chosen_ids, countable_samples, left_out
from gateau_dagster.selection.statistics import uniform
from tests.kit.error_codes import refused
from tests.methods.configured import scores_of
from tests.selection.builders import Row, ranking, slow_largest_remainder, slow_order

KINDS = ["one_far", "several_far", "near", "closed_book", "unpredictable", None]


def pool(
    seed: int = 0, size: int = 90, chances: tuple[float, ...] = (0.2, 0.15, 0.25, 0.25, 0.1, 0.05)
) -> pl.DataFrame:
    """Samples of three sources with all dependencies, some without a score, some with the text of another."""
    rng = np.random.default_rng(seed)
    return ranking(
        rng.choice(["law", "web", "wiki"], size, p=[0.5, 0.3, 0.2]).tolist(),
        tokens=rng.integers(1, 30, size).tolist(),
        unscored={*rng.integers(0, size, 5).tolist()},
        response_tokens=[None if length == 20 else length for length in rng.integers(1, 21, size).tolist()],
        dependency=[KINDS[place] for place in rng.choice(6, size, p=chances)],
        document=[f"d{number}" for number in rng.integers(0, size // 2, size)],
    ).with_columns(digest=pl.Series([f"t{number}" for number in rng.integers(0, 4 * size, size)]))


def far_key(row: Row, spread: float, rule: RuleConfig) -> float:
    """The key that orders far samples: the score with Gumbel noise, or the rank."""
    if rule.tau == 0:
        return -row["rank"]
    noise = -math.log(-math.log(uniform(row["sample_id"], rule.seed)))
    return (row["score"] / (rule.tau * spread) if spread else 0.0) + noise


def slow_stratum(row: Row) -> float | None:
    """Lengths from one power of two to the next, as in 4, 5, 6, 7."""
    return row["response_tokens"] and math.floor(math.log2(row["response_tokens"]))


def slow_webster(ordered: list[Row]) -> list[Row]:
    """Each place goes to the stratum that has least of its share, half a sample more counted; then to the best one."""
    sizes, given, left, found = Counter(map(slow_stratum, ordered)), Counter[Any](), [*ordered], list[Row]()
    while left:
        heads = {slow_stratum(row): row for row in reversed(left)}
        best = min(
            heads.values(),
            key=lambda row: (
                Fraction(2 * given[slow_stratum(row)] + 1, 2 * sizes[slow_stratum(row)]),
                ordered.index(row),
            ),
        )
        given[slow_stratum(best)] += 1
        left.remove(best)
        found.append(best)
    return found


def slow_part(ordered: list[Row], amount: int, by_tokens: bool) -> list[Row]:
    """The first samples that fit, one after the other."""
    taken, spent = [], 0
    for row in ordered:
        spent += row["tokens"] if by_tokens else 1
        if spent > amount:
            break
        taken.append(row)
    return taken


def cost(rows: list[Row], by_tokens: bool) -> int:
    return sum(row["tokens"] for row in rows) if by_tokens else len(rows)


def slow_mix(samples: pl.DataFrame, rule: RuleConfig) -> set[str]:
    """The rule as it is written, sample by sample; without `shares` of sources."""
    by_tokens, scored = rule.budget is not None, slow_order(samples)
    amount = rule.budget if rule.budget is not None else rule.chosen(len(scored))
    rows, texts, documents = [], set(), Counter()
    for row in scored:
        if row["dependency"] in rule.left_out or row["digest"] in texts:
            continue
        texts.add(row["digest"])
        documents[row["document"]] += 1
        if rule.per_document is None or documents[row["document"]] <= rule.per_document:
            rows.append(row)
    amount = amount if by_tokens else min(amount, len(rows))
    lot = sorted(rows, key=lambda row: (-uniform(row["sample_id"], rule.seed), row["sample_id"]))
    if rule.rule == "clean":
        return {row["sample_id"] for row in slow_part(lot, amount, by_tokens)}
    known = [CLASS_OF[row["dependency"]] for row in scored if row["dependency"] is not None]
    use: Any = rule.use or {"far": max(known.count("far") / max(1, len(known)), 0.5)}
    shares = {name: Fraction(repr(share)) for name, share in use.items() if share or name == "far"}
    shares["rest"] = 1 - sum(shares.values(), Fraction(0))
    whole = math.lcm(*(share.denominator for share in shares.values()))
    quotas = slow_largest_remainder({name: int(share * whole) for name, share in shares.items()}, amount)
    chosen, far, left = [], [], quotas["rest"]
    for name in [name for name in shares if name != "rest"]:
        ordered = [row for row in lot if CLASS_OF.get(row["dependency"]) == name]
        if name == "far":
            spread = statistics.pstdev([row["score"] for row in ordered]) if ordered else 0.0
            far = ordered = slow_webster(sorted(ordered, key=lambda row: -far_key(row, spread, rule)))
        taken = slow_part(ordered, quotas[name], by_tokens)
        if len(taken) == len(ordered):
            left += quotas[name] - cost(taken, by_tokens)
        chosen += taken
    others = [
        row for row in lot if row not in chosen and ("far" not in shares or CLASS_OF.get(row["dependency"]) != "far")
    ]
    rest = slow_part(others, left, by_tokens)
    if len(rest) == len(others) and "far" in shares:
        more = slow_part(far, quotas["far"] + left - cost(rest, by_tokens), by_tokens)
        chosen += [row for row in more if row not in chosen]
    return {row["sample_id"] for row in chosen + rest}


RULES: list[dict[str, Any]] = [
    {"rule": "mix", "fraction": 0.3},
    {"rule": "mix", "fraction": 0.9, "use": {"far": 0.2}},
    {"rule": "mix", "count": 11, "use": {"far": 0.7, "near": 0.2}, "seed": 3},
    {"rule": "mix", "count": 30, "use": {"far": 1.0}, "tau": 1.0},
    {"rule": "mix", "budget": 400, "tau": 0.5, "seed": 9},
    {"rule": "mix", "budget": 900, "use": {"far": 0.25, "closed_book": 0.6}, "per_document": 1},
    {"rule": "mix", "count": 20, "use": {"far": 0.0}},
    {"rule": "mix", "fraction": 0.5, "drop": ["closed_book"], "per_document": 2},
    {"rule": "clean", "fraction": 0.4, "per_document": 1},
    {"rule": "clean", "budget": 500, "seed": 4},
]


SCARCE = (0.04, 0.0, 0.4, 0.4, 0.1, 0.06), (0.6, 0.25, 0.1, 0.05, 0.0, 0.0)


@pytest.mark.parametrize("fields", RULES, ids=str)
def test_mix_and_clean_are_as_their_plain_loops(fields: dict[str, Any]) -> None:
    rule = RuleConfig.model_validate(fields)
    for seed in range(8):
        # In the last two, samples of a class are fewer than the quota: of far ones, and of all others.
        samples = pool(seed) if seed < 6 else pool(seed, chances=SCARCE[seed - 6])
        if seed % 3 == 1:
            samples = samples.with_columns(score=pl.when(pl.col("score").is_not_null()).then(1.0))
        chosen = chosen_ids(samples.sample(fraction=1, shuffle=True, seed=seed), rule)
        assert {*chosen} == slow_mix(samples, rule)
        order = [row["sample_id"] for row in slow_order(samples)]
        assert chosen == [one for one in order if one in {*chosen}], "best rank first"


def of_class(samples: pl.DataFrame, ids: list[str]) -> Counter[str | None]:
    kinds = samples.filter(pl.col("sample_id").is_in(ids))["dependency"]
    return Counter(CLASS_OF.get(kind) for kind in kinds)


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 1000),
    far=st.floats(0, 1),
    tau=st.sampled_from([0.0, 0.3, 2.0]),
    counts=st.lists(st.integers(1, 60), min_size=2, max_size=2).map(sorted),
    tokens=st.booleans(),
)
def test_a_greater_amount_only_adds(seed: int, far: float, tau: float, counts: list[int], tokens: bool) -> None:
    samples = pool(seed, size=60)
    amounts = [{"budget": 30 + count * 12} if tokens else {"count": count} for count in counts]
    rules = [
        RuleConfig.model_validate({"rule": "mix", "use": {"far": far if far > 0.1 else 0}, "tau": tau} | amount)
        for amount in amounts
    ]
    few, many = (slow_mix(samples, rule) for rule in rules)
    assert few <= many
    if not tokens:
        assert [*map(len, (chosen_ids(samples, rule) for rule in rules))] == [len(few), len(many)]


def test_a_tiny_tau_is_the_order_of_scores() -> None:
    far = pl.DataFrame({"sample_id": ["a", "b", "c"], "score": [3.0, 2.0, 1.0], "rank": [1, 2, 3]})
    for tau in (0.0, 1e-320, 5e-324):
        assert by_score(far, RuleConfig(rule="mix", tau=tau))["sample_id"].to_list() == ["a", "b", "c"]


@pytest.mark.parametrize("tau", [0.5, 2.0])
def test_the_first_of_the_far_samples_follows_the_softmax(tau: float) -> None:
    far = ranking(["law"] * 4).with_columns(score=pl.Series([2.0, 1.0, 0.5, -1.0]))
    draws = 500
    firsts = Counter(by_score(far, RuleConfig(rule="mix", tau=tau, seed=seed))["sample_id"][0] for seed in range(draws))
    weights = [math.exp(score / (tau * statistics.pstdev(far["score"]))) for score in far["score"]]
    for sample_id, weight in zip(far["sample_id"], weights, strict=True):
        chance = weight / sum(weights)
        assert abs(firsts[sample_id] / draws - chance) < 4 * math.sqrt(chance * (1 - chance) / draws)


@settings(max_examples=30, deadline=None)
@given(
    seed=st.integers(0, 1000),
    share=st.sampled_from([0.5, 0.3, 0.1]),
    long=st.integers(30, 2000),
    count=st.integers(10, 80),
    tau=st.sampled_from([0.0, 1.0]),
)
def test_long_responses_have_their_share_of_the_far_quota(
    seed: int, share: float, long: int, count: int, tau: float
) -> None:
    """Every long response scores below every short one, so that the best far samples have short ones only."""
    rng = np.random.default_rng(seed)
    long_ones = round(100 * share)
    kinds = ["one_far"] * 100 + ["near"] * 100
    lengths = [*rng.integers(2, 4, 100 - long_ones), *[long] * long_ones, *rng.integers(2, 2000, 100)]
    samples = ranking(["law"] * 200, dependency=kinds, response_tokens=lengths)
    rule = RuleConfig(rule="mix", count=count, use={"far": 0.5}, tau=tau, seed=seed)
    chosen = samples.filter(pl.col("sample_id").is_in(chosen_ids(samples, rule)), dependency="one_far")
    assert chosen.height in {math.floor(count / 2), math.ceil(count / 2)}
    assert abs(int((chosen["response_tokens"] == long).sum()) - share * chosen.height) <= 1
    best = chosen_ids(samples.drop("response_tokens"), rule.model_copy(update={"tau": 0.0}))
    assert {*samples.head(chosen.height)["sample_id"]} <= {*best}, "without lengths, short ones only"


def test_a_quota_covers_the_clusters_of_an_encoder() -> None:
    """Two far samples of three have embeddings of one direction, and all of these score above the others."""
    rng = np.random.default_rng(1)
    places = np.array([0] * 20 + [1] * 10 + [0, 1] * 15)
    embedding = np.eye(2, 5)[places] + rng.normal(0, 0.01, (60, 5))
    samples = ranking(
        ["law"] * 60, dependency=["one_far"] * 30 + ["near"] * 30, embedding=embedding.astype(np.float32).tolist()
    )
    rule = RuleConfig(rule="mix", count=12, use={"far": 0.5}, encoder="mini", clusters=2)
    far = [one for one in chosen_ids(samples, rule) if one < "s30"]
    assert far == ["s00", "s01", "s02", "s03", "s20", "s21"]
    assert chosen_ids(samples.sample(fraction=1, shuffle=True, seed=1), rule) == chosen_ids(samples, rule)
    without = samples.with_columns(embedding=pl.when(pl.col("sample_id") < "s20").then("embedding"))
    assert [one for one in chosen_ids(without, rule.model_copy(update={"clusters": 1})) if one < "s30"] == far
    with refused("selection.clusters"):
        check_data({"law": 3}, rule.model_copy(update={"clusters": 4}))


def test_clean_is_what_the_method_random_ranks_first() -> None:
    samples = pool().filter(pl.col("score").is_not_null())
    drawn = scores_of("random", {"raw_long_sft": samples.select("sample_id")}, options={"seed": 7})
    scores = pl.DataFrame({"sample_id": [*drawn], "score": [*drawn.values()]})
    by_lot = samples.drop("score", "rank").join(scores, on="sample_id").sort("score", descending=True)
    by_lot = by_lot.with_columns(rank=pl.int_range(1, pl.len() + 1, dtype=pl.Int32))
    random = RuleConfig(count=25, drop=["unpredictable"], duplicates="keep")
    clean = RuleConfig(rule="clean", count=25, seed=7, duplicates="keep")
    assert {*chosen_ids(samples, clean)} == {*chosen_ids(by_lot, random)}
    other = clean.model_copy(update={"seed": 8})
    assert chosen_ids(samples, other) != chosen_ids(samples, clean)


def test_each_source_has_its_share_and_its_far_quota() -> None:
    samples = pool(2, size=96).with_columns(digest="sample_id")
    rule = RuleConfig(rule="mix", count=24, shares={"law": 2, "web": 1, "wiki": 1}, use={"far": 0.5})
    chosen = samples.filter(pl.col("sample_id").is_in(chosen_ids(samples, rule)))
    assert dict(chosen["source"].value_counts().iter_rows()) == {"law": 12, "web": 6, "wiki": 6}
    for source, wanted in (("law", 6), ("web", 3), ("wiki", 3)):
        mine = samples.filter(source=source)
        alone = RuleConfig(rule="mix", count=2 * wanted, use={"far": 0.5})
        assert {*chosen.filter(source=source)["sample_id"]} == {*chosen_ids(mine, alone)}
    tokens = RuleConfig(rule="mix", budget=300, shares={"law": 1, "web": 1}, use={"far": 0.5})
    spent = samples.filter(pl.col("sample_id").is_in(chosen_ids(samples, tokens))).group_by("source")
    spent = dict(spent.agg(pl.col("tokens").sum()).iter_rows())
    assert spent.keys() == {"law", "web"} and all(90 <= tokens <= 150 for tokens in spent.values())


def test_a_source_that_is_short_of_samples_or_tokens_is_named() -> None:
    samples = ranking(["law"] * 8 + ["web"] * 2, dependency=["one_far", "near"] * 5)
    shares: dict[str, Any] = {"rule": "mix", "shares": {"law": 1, "web": 1}}
    with refused("selection.too_few", "mix.*'web' has 2 samples.*3"):
        chosen_ids(samples, RuleConfig.model_validate(shares | {"count": 6}))
    with refused("selection.too_few", "mix.*'web' has 20 tokens.*30"):
        chosen_ids(samples, RuleConfig.model_validate(shares | {"budget": 60}))
    with refused("selection.too_few", "'web'"):
        check_data({"law": 8, "web": 2}, RuleConfig.model_validate(shares | {"count": 6}))
    check_data({"law": 8, "web": 2}, RuleConfig.model_validate(shares | {"budget": 60}))
    shared = RuleConfig.model_validate(shares | {"count": 6, "short_source": "share"})
    assert len(chosen_ids(samples, shared)) == 6


def test_samples_of_the_use_give_the_far_share_and_are_never_chosen() -> None:
    kinds = ["one_far"] * 3 + ["near"] + ["one_far", "near", "closed_book", "near"] * 10
    samples = ranking(["mine"] * 4 + ["law"] * 40, dependency=kinds)
    rule = RuleConfig(rule="mix", count=12, use=["mine"])
    assert with_shares_of_use(samples, rule).use == {"far": 0.75}
    counts = of_class(samples, chosen_ids(samples, rule))
    assert counts["far"] == 9 and counts.total() == 12
    assert RuleConfig(rule="mix", fraction=0.3, use=["mine"]).chosen(40) == 12
    for other in (rule, RuleConfig(rule="mix", fraction=0.3, use=["mine"]), RuleConfig(count=12, use=["mine"])):
        chosen = chosen_ids(samples, other)
        assert len(chosen) == 12 and not {*chosen} & {*samples.head(4)["sample_id"]}
        assert left_out(samples, other, chosen).rows.is_empty()
    with refused("selection.no_use"):
        chosen_ids(samples.with_columns(dependency=pl.when(pl.col("source") != "mine").then("dependency")), rule)
    with refused("selection.unknown_source"):
        check_data({"law": 40}, rule)
    with refused("selection.no_use"):
        check_data({"mine": 4}, rule)
    check_data(*countable_samples(samples, rule))
    of_tokens = samples.with_columns(tokens=pl.lit(10))
    for other in (
        RuleConfig(rule="per_source", count=40, use=["mine"]),
        RuleConfig(rule="per_source_tokens", budget=400, use=["mine"]),
    ):
        assert {*chosen_ids(of_tokens, other)} == {*samples.tail(40)["sample_id"]}
    check_data({"mine": 4, "law": 40}, RuleConfig(rule="per_source", count=40, use=["mine"]))


def test_only_the_sources_with_a_share_count() -> None:
    samples = ranking(["law"] * 6 + ["web"] * 6, tokens=[10] * 12, dependency=["near"] * 6 + ["one_far"] * 6)
    shares: dict[str, Any] = {"shares": {"law": 1}}
    budget = RuleConfig.model_validate({"rule": "mix", "budget": 60, **shares})
    assert len(chosen_ids(samples, budget)) == 6, "that far samples of another source are not chosen is no error"
    noise = samples.with_columns(dependency=pl.when(pl.col("source") == "law").then(pl.lit("unpredictable")))
    for more in ({"rule": "clean", "count": 2}, {"rule": "mix", "count": 2}):
        with refused("selection.no_scores"):
            chosen_ids(noise, RuleConfig.model_validate({**more, **shares, "short_source": "share"}))


def test_a_pool_that_shows_more_far_text_than_half_keeps_its_share() -> None:
    samples = ranking(["law"] * 10, dependency=["one_far"] * 7 + ["near"] * 3)
    assert with_shares_of_use(samples, RuleConfig(rule="mix")).use == {"far": 0.7}
    assert with_shares_of_use(samples.tail(6), RuleConfig(rule="mix")).use == {"far": 0.5}
    unknown = samples.with_columns(dependency=pl.lit(None, pl.String))
    assert with_shares_of_use(unknown, RuleConfig(rule="mix")).use == {"far": 0.5}
    assert len(chosen_ids(unknown, RuleConfig(rule="mix", count=4))) == 4


def test_what_the_rule_leaves_out_is_counted_with_its_reason() -> None:
    samples = pool()
    rule = RuleConfig(rule="clean", fraction=0.5, drop=["near"])
    out = left_out(samples, rule, chosen_ids(samples, rule))
    scored = samples.filter(pl.col("score").is_not_null())
    for setting, kind in (("rule", "unpredictable"), ("drop", "near")):
        reason = f"selection.{setting}: its dependency is {kind}"
        wanted = scored.filter(dependency=kind)["sample_id"].sort()
        assert out.rows.filter(reason=reason)["sample_id"].to_list() == wanted.to_list()


def test_noise_stays_where_a_model_predicts_nothing() -> None:
    samples = ranking(["law"] * 8, dependency=["unpredictable"] * 8)
    for rule in (RuleConfig(rule="mix", count=3), RuleConfig(rule="clean", count=3)):
        chosen = chosen_ids(samples, rule)
        assert len(chosen) == 3 and left_out(samples, rule, chosen).rows.is_empty()
    one = samples.with_columns(dependency=pl.when(pl.col("sample_id") != "s05").then("dependency"))
    assert chosen_ids(one, RuleConfig(rule="clean", count=3)) == ["s05"]
    with refused("selection.no_scores", "selection.drop"):
        chosen_ids(samples, RuleConfig(rule="clean", count=3, drop=["unpredictable"]))


def test_a_budget_that_is_too_small_is_an_error() -> None:
    samples = ranking(["law"] * 6, tokens=[50] * 3 + [4] * 3, dependency=["one_far"] * 3 + ["near"] * 3)
    with refused("selection.budget", "far"):
        chosen_ids(samples, RuleConfig(rule="mix", budget=60))
    assert len(chosen_ids(samples, RuleConfig(rule="mix", budget=60, use={"far": 0}))) == 3
    with refused("selection.budget"):
        chosen_ids(samples, RuleConfig(rule="clean", budget=3))


def test_shares_of_a_use_may_fill_it() -> None:
    RuleConfig(rule="mix", use={"far": 0.7, "near": 0.2, "closed_book": 0.1, "unpredictable": 0.0})
    assert {*CLASS_OF.values()} == {*CLASSES}
