"""Scores and ranks of all samples against the definition, and the chosen ones with their texts."""

import math
import re

import numpy as np
import polars as pl
import pytest

from gateau_dagster import tables
from gateau_dagster.config.selection import PRESETS, Preset
from gateau_dagster.selection.combine import (
    MEASURES,
    READ_COLUMNS,
    check_observed,
    choose,
    combine,
    join_all,
    join_shard,
    rank,
    ranked,
    ranked_by_score,
    with_reasons,
)
from gateau_dagster.selection.presets import (
    Measures,
    PresetScores,
    check,
    check_all,
    distinct,
    official,
    paper,
    robust,
)
from tests.kit.error_codes import refused
from tests.selection.builders import cam_table, perplexity_table, slow_combine

SHORT, LONG = [6.0, 2.0, 30.0, 5.0], [2.0, 2.5, 31.0, 4.0]
SEGMENTS, CAS = [[9.0, 2.0, 8.0], [4.0, 4.0, 2.5], [30.0], [4.0, 6.0, 4.5]], [0.4, 0.9, None, 0.6]


@pytest.fixture
def frames() -> tuple[pl.DataFrame, pl.DataFrame, pl.DataFrame]:
    return perplexity_table(SHORT), perplexity_table(LONG), cam_table(SEGMENTS, CAS)


def test_the_promised_columns_come_first_and_rows_by_rank(frames) -> None:
    found = combine(*frames, preset="robust", alpha=0.8)
    promised = tables.schema(tables.COMBINED_SCORES)
    assert found.columns[: len(promised)] == promised.names()
    assert found["rank"].to_list() == [1, 2, 3, 4]
    assert found["score"].is_sorted(descending=True)


def test_samples_without_a_score_have_their_reasons() -> None:
    absent = pl.DataFrame({"sample_id": ["y", "x", "z"]})
    rejected = [
        pl.DataFrame({"sample_id": ["x", "y", "s1"], "reason": ["too long", "no tokens", "no CAS"]}),
        pl.DataFrame({"sample_id": ["x", "x"], "reason": ["out of memory", "too long"]}).lazy(),
    ]
    wanted = [("x", "out of memory; too long"), ("y", "no tokens"), ("z", None)]
    assert with_reasons(absent, rejected).rows() == wanted
    assert with_reasons(absent, []).get_column("reason").null_count() == 3


@pytest.mark.parametrize("known", [0.0, 0.7, 1.0])
def test_ranks_are_those_of_a_sort_by_all_keys(known: float) -> None:
    rng = np.random.default_rng(2)
    few = np.array([-1.0, -0.0, 0.0, 0.25, 0.5])
    hmp, score = rng.choice(few, 400), rng.choice(few, 400)
    term = np.where(rng.random(400) < known, score, np.nan)
    null = np.isnan(term)
    order = np.lexsort((np.arange(400), np.where(null, -hmp, 0.0), -score, null))
    found = rank(PresetScores(hmp=hmp, cas=term, hmp_term=hmp, cas_term=term), score)
    assert found.dtype == np.int32
    assert found[order].tolist() == list(range(1, 401))


def test_without_an_alpha_every_preset_has_its_own(frames) -> None:
    found = combine(*frames, preset="paper", alpha=None)
    for preset, alpha in (("paper", 0.8), ("official", 0.8), ("robust", 0.5)):
        given = combine(*frames, preset=preset, alpha=alpha).sort("sample_id")  # pyright: ignore[reportArgumentType]
        columns = [f"{kind}_{preset}" for kind in ("hmp", "cas", "score", "rank")]
        assert found.sort("sample_id").select(columns).equals(given.select(columns))
        other = combine(*frames, preset=preset, alpha=0.6).sort("sample_id")  # pyright: ignore[reportArgumentType]
        assert not other[f"score_{preset}"].equals(given[f"score_{preset}"])


@pytest.fixture
def scores() -> pl.DataFrame:
    return pl.DataFrame(
        {
            "sample_id": [f"s{i:02d}" for i in range(20)],
            "score": [i / 20 for i in range(20)],
            "rank": [20 - i for i in range(20)],
        },
        schema_overrides={"rank": pl.Int32},
    )


@pytest.fixture
def raw(scores: pl.DataFrame) -> pl.DataFrame:
    ids = scores["sample_id"].to_list()
    return pl.DataFrame(
        {column.name: [f"{column.name} of {name}" for name in ids] for column in tables.RAW_LONG_SFT}
    ).with_columns(sample_id=pl.Series(ids))


def test_the_chosen_get_their_texts_by_rank(scores, raw) -> None:
    wanted = ["s19", "s18", "s16", "s03"]
    chosen = scores.filter(pl.col("sample_id").is_in(wanted)).sample(fraction=1, shuffle=True, seed=1)
    found = choose(chosen, raw.lazy())
    assert found["sample_id"].to_list() == wanted
    assert found["rank"].to_list() == [1, 2, 4, 17]
    assert found.schema == tables.schema(tables.SELECTED_SUBSET)
    assert found["context"].to_list() == [f"context of {name}" for name in wanted]


def test_a_conversation_stays_with_its_sample(scores, raw) -> None:
    kept = pl.when(sample_id="s19").then(pl.lit("{}"))
    raw = raw.with_columns(conversation=kept)
    found = choose(scores.filter(pl.col("sample_id").is_in(["s19", "s18"])), raw.lazy())
    assert found["conversation"].to_list() == ["{}", None]
    without = choose(scores.filter(sample_id="s18"), raw.lazy())
    assert without.schema == tables.schema(tables.SELECTED_SUBSET)


def test_a_chosen_sample_that_is_gone_is_an_error(scores, raw) -> None:
    with refused("storage.out_of_date", "1.*s18"):
        choose(scores.sort("rank").head(3), raw.filter(pl.col("sample_id") != "s18").lazy())


def test_ranks_of_a_method_leave_out_what_it_cannot_score() -> None:
    scores = pl.DataFrame({"sample_id": ["d", "c", "b", "a"], "score": [2.0, 5.0, None, 2.0]})
    ranked = ranked_by_score(scores)
    assert list(ranked.iter_rows()) == [("c", 5.0, 1), ("a", 2.0, 2), ("d", 2.0, 3)]
    assert ranked.schema["rank"] == pl.Int32
    with refused("selection.no_scores"):
        ranked_by_score(scores.filter(sample_id="b"))


NAN_CAS = [0.4, 0.9, math.nan, 0.6]
SHORT_P, LONG_P = [0.25, 0.7, 0.1, 0.4], [0.6, 0.5, 0.125, 0.4]
GAINS = [0.375, 0.0, math.nan, 0.25]


@pytest.fixture
def measures() -> Measures:
    return Measures(
        perplexity_short=np.array(SHORT),
        perplexity_long=np.array(LONG),
        probability_short=np.array(SHORT_P),
        probability_long=np.array(LONG_P),
        cas=np.array(NAN_CAS),
        far_gain=np.array(GAINS),
    )


def slow_softmax(values: list[float]) -> list[float]:
    return [math.exp(value) / sum(math.exp(other) for other in values) for value in values]


def slow_min_max(values: list[float]) -> list[float]:
    return [(value - min(values)) / (max(values) - min(values)) for value in values]


def known(values: list[float]) -> list[float]:
    return [value for value in values if not math.isnan(value)]


def spread(values: list[float]) -> list[float]:
    """Back to four samples, the third of which has one segment."""
    return [*values[:2], math.nan, values[2]]


def assert_scores(found: PresetScores, hmp: list[float], cas: list[float], terms: tuple[list[float], list[float]]):
    for got, wanted in zip((found.hmp, found.cas, found.hmp_term, found.cas_term), (hmp, cas, *terms), strict=True):
        assert got.dtype == np.float64
        np.testing.assert_allclose(got, wanted, rtol=1e-12, atol=1e-15)


def test_paper_is_equations_2_5_and_6(measures: Measures) -> None:
    hmp = [a - b for a, b in zip(slow_softmax(SHORT), slow_softmax(LONG), strict=True)]
    assert_scores(paper(measures), hmp, NAN_CAS, (slow_softmax(hmp), spread(slow_softmax(known(NAN_CAS)))))


def test_official_is_the_released_script(measures: Measures) -> None:
    hmp = [a - b for a, b in zip(slow_min_max(SHORT), slow_min_max(LONG), strict=True)]
    assert_scores(official(measures), hmp, NAN_CAS, (slow_softmax(hmp), NAN_CAS))


def test_robust_is_the_gain_in_probability_as_it_is(measures: Measures) -> None:
    hmp = [b - a for a, b in zip(SHORT_P, LONG_P, strict=True)]
    assert_scores(robust(measures), hmp, GAINS, (hmp, GAINS))


@pytest.mark.parametrize("preset", [paper, official, robust])
@pytest.mark.parametrize("alpha", [0.0, 0.8, 1.0])
def test_the_score_weighs_the_terms_and_puts_null_cas_last(measures: Measures, preset, alpha: float) -> None:
    scores = preset(measures)
    found = scores.score(alpha)
    for index in (0, 1, 3):
        wanted = alpha * scores.hmp_term[index] + (1 - alpha) * scores.cas_term[index]
        assert found[index] == pytest.approx(wanted, rel=1e-12)
    assert found[2] == pytest.approx(alpha * scores.hmp_term[2] - (2 if preset is robust else 1), rel=1e-12)
    assert found[2] < found[[0, 1, 3]].min()


@pytest.mark.parametrize("alpha", [0.0, 0.3, 0.8, 1.0])
def test_null_cas_is_last_whatever_the_probabilities(alpha: float) -> None:
    """The worst that a sample with CAS can be, and the best that one without can be."""
    scores = robust(
        Measures(
            perplexity_short=np.ones(3),
            perplexity_long=np.ones(3),
            probability_short=np.array([1.0, 0.0, 0.5]),
            probability_long=np.array([0.0, 1.0, 0.5]),
            cas=np.array([0.5, np.nan, np.nan]),
            far_gain=np.array([0.0, np.nan, np.nan]),
        )
    )
    worst, best, other = scores.score(alpha)
    assert worst >= best >= other
    assert alpha == 1 or worst > best
    assert alpha == 0 or best > other


def test_robust_refuses_a_probability_that_is_not_finite(measures: Measures) -> None:
    broken = Measures(**{**vars(measures), "probability_short": np.array([1.0, math.nan, 0.2, 0.3])})
    with pytest.raises(ValueError, match="not finite"):
        robust(broken)


LENGTH = 8
Tables = dict[str, pl.DataFrame]


def random_tables(seed: int, *, count: int = 60) -> Tables:
    """Samples with zero to six segments, equal values among them, some missing in each table; rows in no order."""
    rng = np.random.default_rng(seed)
    ids = [f"s{number}" for number in rng.permutation(count)]
    contexts = rng.integers(0, 6 * LENGTH, count)
    visible = np.minimum(contexts, rng.choice([1, 3, 2 * LENGTH, 100], count))
    few = [1.0, 2.0, 2.5, 4.0, 9.0]
    segments = [rng.choice(few, -(-int(context) // LENGTH)).tolist() for context in contexts]
    cas, gains = (
        [float(rng.choice(some)) if len(values) > 1 else None for values in segments]
        for some in ([0.2, 0.5], [0.0, 0.1, 0.7])
    )
    made = (
        perplexity_table(rng.choice(few, count).tolist(), context_tokens=visible.tolist(), ids=ids),
        perplexity_table(rng.choice(few, count).tolist(), context_tokens=contexts.tolist(), ids=ids),
        cam_table(segments, cas, ids=ids, far_gain=gains),
    )
    return {
        name: frame.sample(count - int(rng.integers(4)), shuffle=True, seed=seed)
        for name, frame in zip(READ_COLUMNS, made, strict=True)
    }


def in_shards(tables: Tables, shards: int) -> list[Tables]:
    """Every id in the shard of its number; the rows sorted by id in every other shard, as stored tables are."""
    number = pl.col("sample_id").str.slice(1).cast(pl.Int32) % shards
    return [
        {
            name: frame.filter(number == shard) if shard % 2 else frame.filter(number == shard).sort("sample_id")
            for name, frame in tables.items()
        }
        for shard in range(shards)
    ]


def joined(tables: Tables, shards: int = 3) -> pl.DataFrame:
    return join_all(join_shard(part) for part in in_shards(tables, shards))


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("shards", [1, 3, 80])
def test_shard_by_shard_is_sample_by_sample(shards: int, preset: Preset) -> None:
    """Among them equal samples, which the id orders, and samples without CAS, which are last."""
    for seed, alpha in enumerate((0.7, 0.0, 0.5, 1.0)):
        tables = random_tables(seed)
        found = ranked(joined(tables, shards), preset=preset, alpha=alpha)
        wanted = slow_combine(*tables.values(), preset=preset, alpha=alpha)
        assert shards > 1 or found.equals(combine(*tables.values(), preset=preset, alpha=alpha))
        assert found.height > 40
        assert found.equals(wanted.select(pl.col(name).cast(kind) for name, kind in found.schema.items()))


def test_the_joined_table_is_sorted_and_typed() -> None:
    found = joined(random_tables(4))
    assert found.schema == MEASURES
    assert found["sample_id"].is_sorted()
    assert found.rechunk().equals(joined(random_tables(4), shards=1))


def changed(tables: Tables, name: str, ids: list[str], **values: object) -> Tables:
    now = [
        pl.when(pl.col("sample_id").is_in(ids)).then(pl.lit(value)).otherwise(key).alias(key)
        for key, value in values.items()
    ]
    return {**tables, name: tables[name].with_columns(now)}


@pytest.mark.parametrize("shards", [1, 4])
def test_problems_of_all_shards_are_told_at_once(shards: int) -> None:
    ids = [f"s{number}" for number in range(9)]
    table = perplexity_table([2.0] * 9, ids=ids)
    tables = {
        "perplexity/short": table,
        "perplexity/long": table,
        "cam": cam_table([[2.0, 2.0]] * 9, [0.5] * 9, ids=ids),
    }
    with refused("storage.out_of_date", "s1.*s2.*s3.*s4.*s5.*2"):
        joined(changed(tables, "cam", ids[1:8], digest="old"), shards)
    with refused("models.not_homologous", "s0.*s7"):
        joined(changed(tables, "perplexity/short", ["s7", "s0"], response_tokens=4), shards)
    twice = {**tables, "cam": pl.concat([tables["cam"], tables["cam"].slice(2, 3), tables["cam"].slice(3, 1)])}
    with refused("storage.out_of_date", "s2.*s3.*s4"):
        joined(changed(twice, "perplexity/long", ["s1"], digest="old"), shards)
    with refused("selection.no_scores", "perplexity/short.*9.*perplexity/long.*9.*0"):
        joined({**tables, "cam": tables["cam"].clear()}, shards)


def test_a_sample_in_two_shards_is_an_error() -> None:
    (part,) = in_shards(random_tables(0), 1)
    with refused("storage.out_of_date"):
        join_all([join_shard(part)] * 2)


def test_scores_by_attention_that_nobody_saw_are_refused() -> None:
    measures = pl.DataFrame(
        {"segments": [1, 2, 3], "cas": [None, None, 0.5]}, schema={"segments": pl.Int32, "cas": pl.Float64}
    )
    check_observed(measures)
    check_observed(measures.head(1))
    with refused("models.no_attention", r"selection\.preset"):
        check_observed(measures.head(2))


COUNT = 40


@pytest.fixture
def forty() -> pl.DataFrame:
    """Forty samples: perplexities from 2 to 2000, of which theta_A's are a little higher, and unrelated CAS."""
    rng = np.random.default_rng(0)
    long = np.exp(rng.uniform(np.log(2), np.log(2000), COUNT))
    short = long * np.exp(rng.uniform(0, 1, COUNT))
    segments = long[:, None] * np.exp(rng.uniform(0, 2, (COUNT, 6)))
    return combine(
        perplexity_table(short.tolist(), context_tokens=16),
        perplexity_table(long.tolist(), context_tokens=48),
        cam_table(segments.tolist(), rng.uniform(0.3, 0.6, COUNT).tolist()),
        preset="robust",
        alpha=0.8,
    )


def test_the_papers_softmax_over_raw_perplexities_is_called_one_hot(forty: pl.DataFrame) -> None:
    found = check(forty, preset="paper", alpha=0.8)
    assert found.degenerate
    assert found.largest_softmax_share is not None and found.largest_softmax_share > 0.9
    assert found.distinct_hmp <= 5
    assert "paper: softmax over raw perplexities is one-hot" in found.sentence
    assert f"{found.distinct_hmp} distinct values of HMP in 40 samples" in found.sentence


def test_the_official_scripts_score_is_called_one_sided(forty: pl.DataFrame) -> None:
    found = check(forty, preset="official", alpha=0.8)
    assert found.degenerate
    assert found.spearman_cas is not None and found.spearman_cas > 0.95
    assert "official: CAS decides the rank" in found.sentence
    assert "has the weight 0.8" in found.sentence


def made_of(forty: pl.DataFrame, hmp: float, cas: float) -> pl.DataFrame:
    """Forty samples whose robust score is so much of the rank of one unrelated term and of another's."""
    rng = np.random.default_rng(5)
    first, second = rng.permutation(COUNT), rng.permutation(COUNT)
    return forty.with_columns(
        hmp_robust=pl.Series(first / COUNT), cas_robust=pl.Series(second / COUNT),
        score_robust=pl.Series((hmp * first + cas * second) / COUNT),
    )  # fmt: skip


def test_both_terms_count_where_the_score_follows_both(forty: pl.DataFrame) -> None:
    passed = check(forty, preset="robust", alpha=0.8)
    assert not passed.degenerate and passed.distinct_score > 30
    assert passed.sentence.startswith(f"robust: {passed.distinct_score} distinct scores in 40 samples; ")
    alike = made_of(forty, 1.0, 0.0).with_columns(cas_robust="hmp_robust")
    for alpha in (0.2, 0.5, 0.8):
        found = check(alike, preset="robust", alpha=alpha)
        assert not found.degenerate and found.sentence == "robust: 40 distinct scores in 40 samples; both terms count."


@pytest.mark.parametrize(
    ("hmp", "cas", "alpha", "wanted"),
    [
        (1.0, 0.05, 0.5, r"long-model gain decides the rank \(.* 1\.00; far-segment gain 0\.\d\d\) at equal weights"),
        (0.05, 1.0, 0.25, r"far-segment gain decides the rank \(.* 1\.00; .*\) with the weight 0\.75"),
        (1.0, 0.6, 0.5, r"long-model gain leads the rank \(.* 0\.[89]\d; far-segment gain 0\.\d\d\) at equal weights"),
        (1.0, 1.0, 0.5, r"neither term decides the rank alone \(.*: .* gain 0\.[67]\d, far-segment gain 0\.[67]\d\)"),
    ],
)
def test_the_sentence_names_the_term_that_makes_the_rank(
    forty: pl.DataFrame, hmp: float, cas: float, alpha: float, wanted: str
) -> None:
    found = check(made_of(forty, hmp, cas), preset="robust", alpha=alpha)
    assert not found.degenerate
    begin, _, shares = found.sentence.partition("; ")
    assert begin == f"robust: {found.distinct_score} distinct scores in 40 samples"
    assert re.fullmatch(wanted + r"\.", shares), shares


def test_one_of_two_terms_of_equal_weight_may_decide(forty: pl.DataFrame) -> None:
    rescored = forty.with_columns(score_robust="hmp_robust")
    assert not check(rescored, preset="robust", alpha=0.5).problems
    (problem,) = check(rescored, preset="robust", alpha=0.49).problems
    assert problem.startswith(
        "long-model gain decides the rank (Spearman 1.00 with the score) although far-segment gain"
    )
    assert problem.endswith("has the weight 0.51")


def test_a_term_without_weight_may_be_ignored(forty: pl.DataFrame) -> None:
    rescored = forty.with_columns(score_robust="hmp_robust")
    assert not check(rescored, preset="robust", alpha=1.0).problems
    assert check(rescored.with_columns(score_robust="cas_robust"), preset="robust", alpha=1.0).degenerate


def test_equal_scores_are_called_degenerate(forty: pl.DataFrame) -> None:
    flat = forty.with_columns(hmp_robust=pl.lit(0.5), score_robust=pl.lit(0.5))
    found = check(flat, preset="robust", alpha=0.8)
    assert found.spearman_hmp is None
    assert found.problems[:2] == (
        "1 distinct values of long-model gain in 40 samples",
        "1 distinct scores in 40 samples",
    )


def test_too_few_samples_are_no_basis_and_every_preset_is_checked(forty: pl.DataFrame) -> None:
    assert [found.preset for found in check_all(forty, alpha=0.8)] == ["paper", "official", "robust"]
    for few in (forty.head(0), forty.head(1)):
        assert check(few, preset="robust", alpha=0.8).sentence == "robust: fewer than two samples have both terms."


@pytest.mark.parametrize(
    ("values", "wanted"), [([], 0), ([1.0], 1), ([2.0, 2.0], 1), ([0.0, 1e-9, 1.0], 2), ([3.0, 1.0, 2.0, 1.0], 3)]
)
def test_values_closer_than_the_resolution_count_as_one(values: list[float], wanted: int) -> None:
    assert distinct(np.array(values)) == wanted
