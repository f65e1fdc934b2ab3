"""What the experiment's figures draw."""

import numpy as np
import polars as pl
import pytest
from matplotlib.colors import to_hex

from gateau_dagster.features.evaluation.statistics.experiment_plots import grids, over_amounts
from gateau_dagster.features.evaluation.statistics.experiment_plots import values_and_differences as drawn
from gateau_dagster.features.evaluation.statistics.results import amounts
from gateau_dagster.features.report.build import stack
from gateau_dagster.plotting import SELECTED, to_svg
from tests.features.report.builders import experiment_inputs

WITHIN = (0.0, 100.0)
QUIZ = experiment_inputs(["quiz"]).results[0]


def test_models_stand_from_above_in_the_table_s_order_and_the_best_are_green() -> None:
    left, right = drawn(QUIZ.rows, title="t", unit="%", reference="full", bounds=WITHIN).axes
    labels = left.get_yticklabels()[::-1]
    assert [text.get_text() for text in labels] == QUIZ.rows["variant"].to_list()
    assert [to_hex(text.get_color()) == SELECTED for text in labels] == QUIZ.rows["best"].to_list()
    dots = [line.get_xdata()[0] for line in left.lines][::-1]  # type: ignore[index]
    assert dots == QUIZ.rows["value"].to_list()
    assert [text.get_text() for text in right.texts] == ["the reference"]


def test_on_a_phone_both_panels_name_the_models() -> None:
    figure = drawn(QUIZ.rows, title="t", unit="%", reference="full", bounds=WITHIN)
    left, right = figure.axes
    to_svg(figure)
    assert [axis.yaxis.get_tick_params()["labelleft"] for axis in (left, right)] == [True, False]
    stack(figure)
    names = [[text.get_text() for text in axis.get_yticklabels()] for axis in (left, right)]
    assert names[0] == names[1] and all(names[0])
    assert right.yaxis.get_tick_params()["labelleft"]


def test_a_series_is_a_line_over_its_amounts_and_others_are_level() -> None:
    (axis,) = over_amounts(amounts(QUIZ), title="t", unit="%", bounds=WITHIN).axes
    robust, random, *level = axis.lines
    assert [robust.get_label(), random.get_label()] == ["robust", "random"]
    wanted = QUIZ.rows.filter(pl.col("variant").str.starts_with("robust"))
    assert robust.get_ydata() == pytest.approx(wanted["value"].to_list())
    assert [text.get_text() for text in axis.texts] == ["base", "full"] and len(level) == 2


def test_names_of_equal_models_stand_apart() -> None:
    points = amounts(QUIZ).with_columns(value=pl.when(series="").then(50.0).otherwise("value"))
    (axis,) = over_amounts(points, title="t", unit="%", bounds=WITHIN).axes
    first, second = (text.get_position()[1] for text in axis.texts)
    bottom, top = axis.get_ylim()
    assert first == 50.0 and second - first >= 0.06 * (top - bottom)


def test_grids_share_a_scale_and_gaps_stay_blank() -> None:
    cells = pl.DataFrame(
        [("a", 1000, 0.5, 1.0), ("a", 4000, 0.1, 0.25), ("b", 1000, 0.1, 0.5)],
        schema=["model", "length", "depth", "value"],
        orient="row",
    )
    left, right, *_ = grids(cells, title="t", unit="%", bounds=WITHIN).axes
    np.testing.assert_array_equal(
        np.ma.filled(np.ma.asarray(left.images[0].get_array()), np.nan), [[np.nan, 0.25], [1.0, np.nan]]
    )
    assert left.images[0].get_clim() == right.images[0].get_clim() == (0, 100), "a colour means the same in every run"
    assert [text.get_text() for text in left.get_xticklabels()] == ["1k", "4k"]


@pytest.mark.parametrize("models", [1, 3, 4, 8])
def test_grids_of_any_number_of_models_are_drawn_for_a_screen_and_for_a_phone(models: int) -> None:
    rows = [(f"m{model}", length, 0.5, 1.0) for model in range(models) for length in (1000, 4000)]
    cells = pl.DataFrame(rows, schema=["model", "length", "depth", "value"], orient="row")
    figure = grids(cells, title="t", unit="%", bounds=WITHIN)
    assert len(figure.axes) == models + 1, "and the colour bar"
    to_svg(figure)
    stack(figure)
    to_svg(figure)


def test_the_axes_of_values_end_where_values_do() -> None:
    alike = QUIZ.rows.with_columns(value=pl.lit(0.0), low=pl.lit(None, pl.Float64), high=pl.lit(None, pl.Float64))
    wide = QUIZ.rows.with_columns(value=pl.lit(98.0), low=pl.lit(60.0), high=pl.lit(100.0))
    for rows, (least, most) in ((alike, (-0.004, 0.06)), (wide, (57.0, 101.5))):
        axis = drawn(rows, title="t", unit="%", reference="full", bounds=WITHIN).axes[0]
        low, high = axis.get_xlim()
        assert least < low < high < most
    points = amounts(QUIZ).with_columns(value=pl.lit(0.0), low=pl.lit(None, pl.Float64), high=pl.lit(None, pl.Float64))
    low, high = over_amounts(points, title="t", unit="%", bounds=WITHIN).axes[0].get_ylim()
    assert -0.004 < low < high
