"""Which contexts may be cut, against a plain loop over samples, on random tables and at each border."""

from typing import Any

import numpy as np
import polars as pl
import pytest

from gateau_dagster import tables
from gateau_dagster.config.selection import CLASSES
from gateau_dagster.selection.evidence import CLASS_OF, dependencies
from gateau_dagster.selection.statistics import uniform
from gateau_dagster.selection.trim import (
    LEAST_SCORE,
    SHORT_COLUMNS,
    TRIM_CAM_COLUMNS,
    TRIM_LONG_COLUMNS,
    WHOLE,
    stays_whole,
    trim_figures,
    trims,
)
from tests.selection.test_evidence import HIGH, LOW, OTHER, figures


def plain(rows: list[dict[str, Any]], seed: int) -> dict[str, int]:
    """The definition, sample by sample."""
    without_far = [row for row in rows if row["class"] in {"near", "closed_book"}]
    scores = sorted(row["score"] for row in without_far)
    found = {}
    for row in without_far:
        if (
            row["gain"] < 0.5
            and row["score"] < scores[int(LEAST_SCORE * (len(scores) - 1))]
            and row["shown_tokens"] < row["context_tokens"]
            and uniform(f"trim/{row['sample_id']}", seed) >= 0.15
        ):
            found[row["sample_id"]] = row["shown_tokens"]
    return found


@pytest.mark.parametrize("seed", range(6))
def test_the_cut_samples_are_those_of_the_plain_loop(seed: int) -> None:
    rng, count, classes = np.random.default_rng(seed), 400, CLASSES if seed < 5 else ("far", "unpredictable")
    frame = pl.DataFrame(
        {
            "sample_id": [f"s{number}" for number in range(count)],
            "class": rng.choice(classes, count),
            "gain": rng.choice([0.0, 0.3, 0.5, 0.7], count),
            "score": rng.normal(size=count).round(1),  # many are equal
            "context_tokens": rng.integers(0, 6, count),
            "shown_tokens": rng.integers(0, 6, count),
        },
        schema_overrides={"context_tokens": pl.Int32, "shown_tokens": pl.Int32},
    )
    found = trims(frame, seed=seed)
    assert dict(found.iter_rows()) == plain(frame.to_dicts(), seed)
    assert found.schema == pl.Schema({"sample_id": pl.String, "shown_tokens": pl.Int32})
    assert found.is_empty() == ("near" not in classes)
    assert {*trims(frame.sample(fraction=1, shuffle=True, seed=1), seed=seed).iter_rows()} == {*found.iter_rows()}


def test_a_stable_share_stays_whole() -> None:
    kept = {seed: [stays_whole(f"s{number}", seed=seed) for number in range(20_000)] for seed in (0, 1)}
    for each in kept.values():
        assert np.mean(each) == pytest.approx(WHOLE, abs=0.01)
    both = np.mean([first and second for first, second in zip(*kept.values(), strict=True)])
    assert both == pytest.approx(WHOLE**2, abs=0.01), "another seed keeps others"


def test_the_figures_are_those_of_the_tables() -> None:
    """Three far segments and two near ones, with each class once, and a context without any segment."""
    rows = {
        "far": figures(0.1, [HIGH, LOW, LOW, LOW, LOW]),
        "near": figures(0.1, [[0.3, 0.2, 0.1], LOW, LOW, LOW, HIGH]),
        "closed_book": figures(0.6, [[0.7, 0.7, 0.7], [0.8, 0.6, 0.6], [0.6] * 3, [0.6] * 3, [0.6] * 3]),
        "unpredictable": figures(0.01, [[0.01] * 3] * 5, everything=0.05),
        "screened": figures(0.1, [HIGH, OTHER, LOW, LOW, LOW], read={1, 4}),
    }
    none = figures(0.9, [[0.9] * 3]) | {"segment_gain": [], "segment_perplexity": [], "near_segments": 0}
    given = [
        row | {"sample_id": name, "far_gain": 0.25 if name == "far" else None, "context_tokens": 50}
        for name, row in [*rows.items(), ("none", none)]
    ]
    kinds = {**tables.schema(tables.CAM), **tables.schema(tables.PERPLEXITY)}
    frame = pl.DataFrame(given, schema={name: kinds[name] for name in given[0]})
    short = frame.select("sample_id", context_tokens=pl.lit(20, pl.Int32), mean_probability=pl.lit(0.5))
    cam, long = frame.select(TRIM_CAM_COLUMNS), frame.select(TRIM_LONG_COLUMNS)
    assert short.columns == [*SHORT_COLUMNS]
    found = {row["sample_id"]: row for row in trim_figures(cam, long, short).iter_rows(named=True)}
    classes = {name: CLASS_OF[dependency] for name, _, dependency in dependencies(cam, long).iter_rows()}
    assert {name: row["class"] for name, row in found.items()} == classes
    assert {*classes.values()} == {*CLASSES}
    for name, row in found.items():
        source = next(each for each in given if each["sample_id"] == name)
        far = source["segment_gain"][: len(source["segment_gain"]) - source["near_segments"]]
        assert row["gain"] == pytest.approx(max([gain for gain in far if gain is not None], default=0.0))
        assert row["score"] == pytest.approx(source["mean_probability"] - 0.5 + (source["far_gain"] or 0.0))
        assert (row["context_tokens"], row["shown_tokens"]) == (50, 20)
    assert found["far"]["gain"] == pytest.approx(0.8) and found["screened"]["gain"] == pytest.approx(0.8)
    assert found["closed_book"]["gain"] == pytest.approx(0.3) and found["none"]["gain"] == 0.0
    assert trim_figures(cam, long, short.head(2)).height == 2, "a sample that a model rejected is not known"
