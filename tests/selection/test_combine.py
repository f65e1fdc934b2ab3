"""Scores and ranks of all samples against the definition, and the chosen ones with their texts."""

import numpy as np
import polars as pl
import pytest

from gateau_dagster import tables
from gateau_dagster.config.selection import PRESETS, Preset
from gateau_dagster.selection.combine import choose, combine, rank, ranked_by_score, with_reasons
from gateau_dagster.selection.presets import PRESET_FUNCTIONS, Measures, PresetScores
from tests.error_codes import refused
from tests.selection.tables_in_test import cam_table, perplexity_table

SHORT, LONG = [6.0, 2.0, 30.0, 5.0], [2.0, 2.5, 31.0, 4.0]
SEGMENTS, CAS = [[9.0, 2.0, 8.0], [4.0, 4.0, 2.5], [30.0], [4.0, 6.0, 4.5]], [0.4, 0.9, None, 0.6]
CONTEXTS, VISIBLE = [24, 20, 6, 24], [8, 8, 6, 8]


@pytest.fixture
def frames() -> tuple[pl.DataFrame, pl.DataFrame, pl.DataFrame]:
    return (
        perplexity_table(SHORT, context_tokens=VISIBLE),
        perplexity_table(LONG, context_tokens=CONTEXTS),
        cam_table(SEGMENTS, CAS),
    )


@pytest.mark.parametrize("preset", PRESETS)
def test_the_columns_hold_what_the_presets_compute(frames, preset: Preset) -> None:
    measures = Measures(
        perplexity_short=np.array(SHORT),
        perplexity_long=np.array(LONG),
        cas=np.array([0.4, 0.9, np.nan, 0.6]),
        probability_short=1 / np.array(SHORT),
        probability_long=1 / np.array(LONG),
        far_gain=np.array([0.4, 0.9, np.nan, 0.6]) / 4,
    )
    wanted = PRESET_FUNCTIONS[preset](measures)
    found = combine(*frames, preset=preset, alpha=0.8).sort("sample_id")
    assert found["hmp"].to_list() == wanted.hmp.tolist()
    assert found["score"].to_list() == wanted.score(0.8).tolist()
    assert found["cas"].is_null().to_list() == [False, False, True, False]
    for name in ("hmp", "cas", "score", "rank"):
        assert found[name].equals(found[f"{name}_{preset}"])
    assert found["perplexity_short"].to_list() == SHORT
    assert found["perplexity_long"].to_list() == LONG
    assert found["context_tokens"].to_list() == CONTEXTS
    assert found["segments"].to_list() == [3, 3, 1, 3]


def test_the_promised_columns_come_first_and_rows_by_rank(frames) -> None:
    found = combine(*frames, preset="robust", alpha=0.8)
    promised = tables.schema(tables.COMBINED_SCORES)
    assert found.columns[: len(promised)] == promised.names()
    assert found["rank"].to_list() == [1, 2, 3, 4]
    assert found["score"].is_sorted(descending=True)


@pytest.mark.parametrize("alpha", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("preset", PRESETS)
def test_null_cas_ranks_last_by_hmp(preset: Preset, alpha: float) -> None:
    found = combine(
        perplexity_table([50.0, 2.0, 60.0, 3.0]),
        perplexity_table([3.0, 2.5, 2.0, 2.9]),
        cam_table([[3.0], [4.0, 2.0], [], [9.0, 2.0]], [None, 0.9, None, 0.5]),
        preset=preset,
        alpha=alpha,
    )
    last = found.tail(2)
    assert last["cas"].is_null().all()
    assert last["sample_id"].to_list() == ["s2", "s0"]


@pytest.mark.parametrize("preset", PRESETS)
def test_ties_break_by_id_and_the_order_of_rows_does_not_matter(preset: Preset) -> None:
    ids = ["b", "d", "a", "c"]
    parts = (perplexity_table([2.0] * 4, ids=ids), perplexity_table([2.0] * 4, ids=ids))
    cam = cam_table([[2.0, 2.0]] * 4, [0.5] * 4, ids=ids)
    found = combine(*parts, cam, preset=preset, alpha=0.8)
    assert found["sample_id"].to_list() == ["a", "b", "c", "d"]
    again = combine(
        parts[0].reverse(), parts[1].lazy(), cam.sample(fraction=1, shuffle=True, seed=3), preset=preset, alpha=0.8
    )
    assert again.equals(found)


def test_only_samples_of_all_three_tables_are_scored(frames) -> None:
    short, long, cam = frames
    found = combine(short.head(3), long, cam.tail(3), preset="robust", alpha=0.8)
    assert sorted(found["sample_id"]) == ["s1", "s2"]


def test_tables_of_different_versions_are_an_error_that_names_the_samples(frames) -> None:
    short, long, cam = frames
    stale = cam.with_columns(
        pl.when(pl.col("sample_id") == "s1").then(pl.lit("old")).otherwise("digest").alias("digest")
    )
    with refused("storage.out_of_date", "s1"):
        combine(short, long, stale, preset="robust", alpha=0.8)


def test_a_sample_that_stands_twice_is_an_error(frames) -> None:
    short, long, cam = frames
    with refused("storage.out_of_date", "perplexity/long.*s0"):
        combine(short, pl.concat([long, long.head(1)]), cam, preset="robust", alpha=0.8)


def test_nothing_in_common_is_an_error(frames) -> None:
    short, long, cam = frames
    with refused("selection.no_scores", "perplexity/short.*4.*perplexity/long.*4.*0"):
        combine(short, long, cam.clear(), preset="robust", alpha=0.8)


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


def test_a_chosen_sample_that_is_gone_is_an_error(scores, raw) -> None:
    with refused("storage.out_of_date", "1.*s18"):
        choose(scores.sort("rank").head(3), raw.filter(pl.col("sample_id") != "s18").lazy())


def test_ranks_of_a_method_leave_out_what_it_cannot_score() -> None:
    scores = pl.DataFrame({"sample_id": ["d", "c", "b", "a"], "score": [2.0, 5.0, None, 2.0]})
    ranked = ranked_by_score(scores)
    assert list(ranked.iter_rows()) == [("c", 5.0, 1), ("a", 2.0, 2), ("d", 2.0, 3)]
    assert ranked.schema["rank"] == pl.Int32


def test_a_method_without_any_score_is_an_error() -> None:
    with refused("selection.no_scores"):
        ranked_by_score(pl.DataFrame({"sample_id": ["a"], "score": [None]}, schema_overrides={"score": pl.Float64}))
