"""The plot of relative distances."""

import numpy as np
import polars as pl
import pytest
from matplotlib.axes import Axes
from matplotlib.patches import StepPatch

from gateau_dagster.plotting import to_svg
from gateau_dagster.report.plots.positions import relative_distances

TABLE = pl.DataFrame(
    {
        "first": [0, 1, 2, 10, 100],
        "end": [1, 2, 10, 100, 1000],
        "before": [1.0, 0.9, 0.5, 0.0, 0.0],
        "after": [1.0, 0.9, 0.4, 0.02, 1e-9],
    }
)


def _stairs(axis: Axes) -> dict[str, StepPatch]:
    return {str(patch.get_label()): patch for patch in axis.patches if isinstance(patch, StepPatch)}


@pytest.mark.parametrize("panel", [0, 1])
def test_both_panels_show_the_shares_of_the_bins_in_percent(panel: int) -> None:
    stairs = _stairs(relative_distances(TABLE).axes[panel])
    assert set(stairs) == {"plain positions", "skipped"}
    for name, column in (("plain positions", "before"), ("skipped", "after")):
        values, edges, _ = stairs[name].get_data()
        np.testing.assert_allclose(values, 100 * TABLE[column].to_numpy())
        np.testing.assert_allclose(edges, [0, 1, 2, 10, 100, 1000])


def test_the_whole_range_has_a_logarithmic_share_and_the_close_view_a_logarithmic_distance() -> None:
    whole, close = relative_distances(TABLE).axes
    assert (whole.get_xscale(), whole.get_yscale()) == ("linear", "log")
    assert (close.get_xscale(), close.get_yscale()) == ("log", "linear")
    assert whole.get_xlim() == (0, 1000)
    low, high = whole.get_ylim()
    assert high > 100
    assert 1 <= low <= 2, "one share of a millionth does not stretch the axis"


def test_a_data_set_without_responses_is_said() -> None:
    for table in (TABLE.with_columns(before=pl.lit(0.0), after=pl.lit(0.0)), TABLE.clear()):
        figure = relative_distances(table)
        assert [axis.texts[0].get_text() for axis in figure.axes] == ["no sample has a response to learn"] * 2


@pytest.mark.parametrize("rows", [0, 1, 5])
def test_it_can_be_drawn(rows: int) -> None:
    assert b"</svg>" in to_svg(relative_distances(TABLE.head(rows)))
