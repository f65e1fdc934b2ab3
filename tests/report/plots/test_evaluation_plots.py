"""Held-out bars and needle heatmaps show the tables."""

import numpy as np
import polars as pl

from gateau_dagster import tables
from gateau_dagster.report.plots import heldout_bars, needle_heatmaps

_HELDOUT = pl.DataFrame(
    [("0–9", "base", 4, 1.0, 2.718), ("0–9", "checkpoint", 4, 0.5, 1.649), ("all", "base", 4, 1.0, 2.5)],
    schema=tables.schema(tables.HELDOUT),
    orient="row",
)
_NEEDLE = pl.DataFrame(
    [("base", 1000, 1.0, 4, 0.25, 1.0), ("base", 500, 0.0, 4, 0.75, 1.0), ("base", 500, 1.0, 4, 1.0, 1.0)],
    schema=tables.schema(tables.NEEDLE),
    orient="row",
)


def test_bars_stand_over_their_range_with_their_height() -> None:
    axis = heldout_bars(_HELDOUT).axes[0]
    assert [bar.get_height() for bar in axis.patches] == [2.718, 2.5, 1.649]  # type: ignore[attr-defined]
    assert [tick.get_text() for tick in axis.get_xticklabels()] == ["0–9\n(4 samples)", "all\n(4 samples)"]
    assert [text.get_text() for text in axis.texts] == ["2.72", "2.50", "1.65"]


def test_large_perplexities_are_written_out() -> None:
    values = [12_345.6, 999.7, 100.0, 99.9]
    rows = [(f"{place}", "base", 1, 1.0, value) for place, value in enumerate(values)]
    axis = heldout_bars(pl.DataFrame(rows, schema=tables.schema(tables.HELDOUT), orient="row")).axes[0]
    assert [text.get_text() for text in axis.texts] == ["12,346", "1,000", "100", "99.9"]


def test_no_bars_without_samples() -> None:
    assert heldout_bars(_HELDOUT.clear()).axes[0].texts[0].get_text() == "no held-out sample could be scored"


def test_heatmap_has_depth_down_and_length_across_and_gaps_stay_blank() -> None:
    left, right = needle_heatmaps(_NEEDLE).axes
    grid = np.ma.getdata(np.ma.asarray(left.images[0].get_array()))
    np.testing.assert_array_equal(grid, [[0.75, np.nan], [1.0, 0.25]])
    assert [text.get_text() for text in left.texts] == ["75 %", "100 %", "25 %"]
    assert [tick.get_text() for tick in left.get_xticklabels()] == ["500", "1,000"]
    assert [tick.get_text() for tick in left.get_yticklabels()] == ["0", "100"]
    assert right.texts[0].get_text() == "checkpoint: not measured"


def test_both_models_share_one_scale() -> None:
    both = pl.concat([_NEEDLE, _NEEDLE.with_columns(model=pl.lit("checkpoint"))])
    limits = [axis.images[0].get_clim() for axis in needle_heatmaps(both).axes]
    assert limits == [(0, 1), (0, 1)]
