"""Alpha and segment length, against `combine` run afresh and against plain loops."""

import numpy as np
import polars as pl
import pytest

from gateau_dagster.comparison.sweeps import alpha_sweep, attention_peaks, attention_sweep, segment_length_sweep
from gateau_dagster.config import PRESETS
from gateau_dagster.scoring.segments import segment_means
from gateau_dagster.selection.combine import combine
from gateau_dagster.selection.statistics import auroc
from tests.comparison import slow
from tests.kit.error_codes import refused

COUNT, LENGTH = 40, 128
IDS = [f"s{number:02d}" for number in range(COUNT)]


def tables(length: int = LENGTH, *, seed: int = 0) -> dict[str, pl.DataFrame]:
    """perplexity/short, perplexity/long and cam of contexts of 50 to 1500 tokens; some have one segment."""
    rng = np.random.default_rng(seed)
    tokens = rng.integers(50, 1500, COUNT)
    models = {}
    for model, limit in (("short", 300), ("long", 10**6)):
        values = np.exp(rng.normal(1, 0.5, COUNT))
        models[model] = pl.DataFrame(
            {"sample_id": IDS, "digest": IDS, "perplexity": values, "mean_nll": np.log(values),
             "context_tokens": np.minimum(tokens, limit), "response_tokens": [7] * COUNT, "truncated_tokens": 0,
             "mean_probability": rng.random(COUNT)}
        )  # fmt: skip
    segments = [-(-int(each) // length) for each in tokens]
    other = np.random.default_rng([seed, length])
    cam = pl.DataFrame(
        {
            "sample_id": IDS,
            "digest": IDS,
            "segments": segments,
            "segment_perplexity": [list(np.exp(other.normal(1, 1, n))) for n in segments],
            "segment_attention": [list(other.random(n) / 1000) for n in segments],
            "cas": [None if n < 2 else float(other.random()) for n in segments],
            "far_gain": [None if n < 2 else float(other.random()) for n in segments],
        }
    )
    return models | {"cam": cam}


def ranking(scores: pl.DataFrame) -> dict[str, float]:
    """A slow.Scores of a ranking."""
    return {key: -float(place) for key, place in scores.select("sample_id", "rank").iter_rows()}


@pytest.mark.parametrize("preset", PRESETS)
def test_every_alpha_is_what_combine_gives_for_it(preset: str) -> None:
    given = tables()
    far = [number % 3 == 0 for number in range(COUNT)]
    configured = combine(**given, preset=preset, alpha=0.8)  # type: ignore[arg-type]
    sources = pl.DataFrame({"sample_id": IDS, "source": ["far" if one else "near" for one in far]})
    found = alpha_sweep(
        configured, preset=preset, alpha=0.8, chosen=8,  # type: ignore[arg-type]
        sources=sources, ground_truth=["far"], alphas=(0.0, 0.3, 0.8, 1.0),
    )  # fmt: skip
    assert [curve.preset for curve in found.curves] == list(PRESETS)
    assert (found.preset, found.alpha, found.samples, found.chosen) == (preset, 0.8, COUNT, 8)
    best = set(slow.order(ranking(configured))[:8])
    for curve in found.curves:
        for point in curve.points:
            fresh = combine(**given, preset=curve.preset, alpha=point.value)  # type: ignore[arg-type]
            assert point.spearman == pytest.approx(slow.spearman(ranking(fresh), ranking(configured)))
            assert point.overlap == len(best & set(slow.order(ranking(fresh))[:8])) / 8
            assert point.auroc == pytest.approx(auroc(fresh.sort("sample_id")["score"].to_numpy(), far))
    own = next(curve for curve in found.curves if curve.preset == preset).points[2]
    assert (own.value, own.spearman, own.overlap) == (0.8, pytest.approx(1.0), 1.0)


def test_samples_that_the_pair_cannot_score_are_the_last() -> None:
    scores = combine(**tables(), preset="robust", alpha=0.8)
    ids = [*IDS, "t1", "t2", "t3"]
    far = [number % 3 == 0 for number in range(COUNT)] + [True, False, True]
    sources = pl.DataFrame({"sample_id": ids, "source": ["far" if one else "near" for one in far]}).reverse()
    found = alpha_sweep(scores, preset="robust", alpha=0.8, chosen=8, sources=sources, ground_truth=["far"])
    own = next(curve for curve in found.curves if curve.preset == "robust").points[8]
    values = [*scores.sort("sample_id")["score"], -9.0, -9.0, -9.0]
    assert own.auroc == pytest.approx(auroc(values, far)) and found.samples == COUNT


def test_without_a_ground_truth_the_sweep_has_no_auroc_and_needs_no_source() -> None:
    scores = combine(**tables(), preset="robust", alpha=0.8)
    found = alpha_sweep(scores, preset="robust", alpha=0.8, chosen=8)
    assert {point.auroc for curve in found.curves for point in curve.points} == {None}
    assert [point.value for point in found.curves[0].points] == [step / 10 for step in range(11)]


def test_segment_lengths_are_compared_between_stored_tables() -> None:
    cams = {length: tables(length)["cam"] for length in (64, 128, 256)}
    cams[64] = cams[64].head(COUNT - 3)
    given = tables()
    sources = pl.DataFrame(
        {"sample_id": IDS, "source": ["far" if number % 3 == 0 else "near" for number in range(COUNT)]}
    )
    found = segment_length_sweep(
        given["short"], given["long"], cams, configured=128, preset="robust", alpha=0.2, chosen=8, sources=sources,
        ground_truth=["far"],
    )  # fmt: skip
    assert (found.configured, found.samples, [point.value for point in found.points]) == (
        128,
        COUNT - 3,
        [64, 128, 256],
    )
    fresh = {
        length: combine(given["short"], given["long"], cam.head(COUNT - 3), preset="robust", alpha=0.2)
        for length, cam in cams.items()
    }
    for point in found.points:
        one, two = ranking(fresh[int(point.value)]), ranking(fresh[128])
        assert point.spearman == pytest.approx(slow.spearman(one, two))
        assert point.overlap == len(set(slow.order(one)[:8]) & set(slow.order(two)[:8])) / 8
        assert point.auroc is not None
    assert found.points[0].overlap < 1 == found.points[1].overlap
    assert found.single == tuple(
        sum(1 for count in cams[length].head(COUNT - 3)["segments"] if count < 2) for length in (64, 128, 256)
    )
    assert found.single[0] < found.single[2]
    without = {length: cam.drop("cas") for length, cam in cams.items()}
    again = segment_length_sweep(
        given["short"], given["long"], without, configured=128, preset="robust", alpha=0.2, chosen=8, sources=sources,
        ground_truth=["far"],
    )  # fmt: skip
    assert again == found, "robust does not read CAS"


def test_tables_without_a_common_sample_are_refused() -> None:
    given = tables()
    cams = {128: given["cam"].head(5), 64: tables(64)["cam"].tail(5)}
    with refused("selection.no_scores"):
        segment_length_sweep(given["short"], given["long"], cams, configured=128, preset="robust", alpha=0.8, chosen=8)


def test_merged_attention_is_that_of_the_tokens() -> None:
    rng = np.random.default_rng(2)
    tokens = {"a": 1000, "b": 128, "c": 129, "d": 0, "e": 1, "f": 0}
    weights = {key: rng.random(count) for key, count in tokens.items()}
    cam = pl.DataFrame(
        {
            "sample_id": list(tokens),
            "context_tokens": list(tokens.values()),
            "segment_attention": [segment_means(weights[key], LENGTH) for key in tokens],
        },
        schema_overrides={"segment_attention": pl.List(pl.Float64)},
    )
    found = attention_peaks(cam, segment_length=LENGTH, factors=(1, 2, 4))
    assert found["sample_id"].to_list() == ["a", "b", "c", "e"]
    nothing = attention_peaks(cam.filter(context_tokens=0), segment_length=LENGTH, factors=(1, 2, 4))
    assert nothing.schema == found.schema and nothing.is_empty()
    for row in found.iter_rows(named=True):
        attention = weights[row["sample_id"]]
        for factor in (1, 2, 4):
            expected = max(segment_means(attention, factor * LENGTH)) / np.mean(attention)
            assert row[f"peak_{factor}"] == pytest.approx(expected)


def test_the_attention_sweep_sums_up_the_peaks() -> None:
    peaks = pl.DataFrame({"sample_id": ["a", "b", "c"], "peak_1": [3.0, 2.0, 5.0], "peak_2": [1.0, 1.5, 2.0]})
    found = attention_sweep(peaks, segment_length=LENGTH, factors=(1, 2))
    assert found is not None
    assert (found.configured, found.samples) == (128, 3)
    assert [(point.length, point.median_peak) for point in found.points] == [(128, 3.0), (256, 1.5)]
    assert [point.spearman for point in found.points] == [pytest.approx(1.0), pytest.approx(0.5)]
    assert attention_sweep(peaks.clear(), segment_length=LENGTH) is None
