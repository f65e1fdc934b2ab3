"""Plots of the mix, the relative distances and the loss."""

import math

import numpy as np
import polars as pl
import pytest
from matplotlib.axes import Axes
from matplotlib.patches import StepPatch

from gateau_dagster.plots.training_plots import (
    MOST_SOURCES,
    SMOOTH_ABOVE,
    curve,
    mix_contents,
    relative_distances,
    training_curve,
    training_speed,
)
from gateau_dagster.plotting import to_svg

_RNG = np.random.default_rng(0)


def sequences(*sources: tuple[str, str]) -> pl.DataFrame:
    """Ten sequences of each (origin, source)."""
    rows = [(*each, int(tokens), int(tokens) // 3) for each in sources for tokens in _RNG.integers(9, 9000, 10)]
    return pl.DataFrame(rows, ["origin", "source", "tokens", "trained_tokens"], orient="row")


def shares(axis: Axes) -> list[list[float]]:
    """Widths of the bars, a list for each figure."""
    return [[bar.get_width() for bar in container] for container in axis.containers]  # type: ignore[attr-defined]


def test_every_sequence_is_in_a_bar() -> None:
    left, _ = mix_contents(sequences(("long", "a"), ("short", "c"), ("short", "d"))).axes
    assert [sum(bar.get_height() for bar in group) for group in left.containers] == [10, 20]  # type: ignore[attr-defined]


def test_shares_are_of_the_whole_mix() -> None:
    frame = sequences(("long", "a"), ("short", "a"), ("short", "$c$"))
    _, right = mix_contents(frame).axes
    names = [text.get_text() for text in right.get_yticklabels()]
    assert sorted(names) == [r"\$c\$ (short)", "a (long)", "a (short)"]
    for group, column in zip(shares(right), (None, "tokens", "trained_tokens"), strict=True):
        of_long = frame.filter(origin="long")
        wanted = 100 / 3 if column is None else 100 * int(of_long[column].sum()) / int(frame[column].sum())
        assert group[names.index("a (long)")] == pytest.approx(wanted)
        assert sum(group) == pytest.approx(100)


def test_many_sources_become_one() -> None:
    _, right = mix_contents(sequences(*(("long", f"s{number}") for number in range(MOST_SOURCES + 3)))).axes
    names = [text.get_text() for text in right.get_yticklabels()]
    assert len(names) == MOST_SOURCES
    assert names[-1] == "4 other sources"
    assert [sum(group) for group in shares(right)] == pytest.approx([100] * 3)
    _, right = mix_contents(sequences(*(("long", f"s{number}") for number in range(MOST_SOURCES)))).axes
    assert "other" not in "".join(text.get_text() for text in right.get_yticklabels())


def test_lengths_that_hardly_differ_have_a_plain_axis() -> None:
    for longest, scale in ((64, "linear"), (8 * 64, "linear"), (9 * 64, "log")):
        frame = sequences(("long", "a")).with_columns(tokens=pl.Series([64] * 9 + [longest]))
        left, _ = mix_contents(frame).axes
        assert left.get_xscale() == scale
        assert sum(bar.get_height() for bar in left.containers[0]) == 10  # type: ignore[attr-defined]


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


_NAN = math.nan


def test_curve_is_ordered_finite_and_keeps_the_last_of_a_repeated_step() -> None:
    log = [{"step": 3, "loss": 3.0}, {"step": 1, "loss": 9.0}, {"step": 2, "loss": _NAN}, {"step": 1, "loss": 1.0},
           {"step": 4, "loss": None}, {"step": 5}]  # fmt: skip
    assert curve(log, "loss") == ([1.0, 3.0], [1.0, 3.0])


def test_short_logs_are_drawn_as_they_are() -> None:
    left, right = training_curve([{"step": i, "loss": 1.0 / i, "learning_rate": 1e-5} for i in range(1, 6)]).axes
    np.testing.assert_allclose(np.asarray(left.lines[0].get_ydata(), dtype=float), [1, 1 / 2, 1 / 3, 1 / 4, 1 / 5])
    assert len(left.lines) == len(right.lines) == 1


def test_long_logs_get_a_running_mean() -> None:
    losses = np.random.default_rng(0).random(SMOOTH_ABOVE * 4)
    left, _ = training_curve([{"step": i + 1, "loss": loss} for i, loss in enumerate(losses)]).axes
    steps, smooth = (np.asarray(data, dtype=float) for data in left.lines[1].get_data())
    width = len(losses) // 12
    assert len(smooth) == len(losses) - width + 1
    for place in (0, 17, len(smooth) - 1):
        assert smooth[place] == np.mean(losses[place : place + width]) or math.isclose(
            smooth[place], np.mean(losses[place : place + width])
        )
        assert steps[place] == place + width // 2 + 1


def test_speed_and_memory_of_a_training() -> None:
    log = [
        {"step": step, "tokens_per_second": 100.0 * step, "mfu": 0.25, "peak_memory_bytes": 2**31}
        | ({"host_memory_bytes": 2**30} if step > 1 else {})
        for step in range(1, 4)
    ]
    left, right = training_speed(log).axes
    assert list(left.lines[0].get_ydata()) == [100.0, 200.0, 300.0]
    assert "25%" in left.get_title(loc="left") + left.get_title()
    assert [list(line.get_ydata()) for line in right.lines] == [[2.0, 2.0, 2.0], [1.0, 1.0]]
    assert list(right.lines[1].get_xdata()) == [2.0, 3.0]


def test_what_was_not_logged_is_said() -> None:
    left, rate = training_curve([{"step": 1, "loss": 2.0}]).axes
    _, memory = training_speed([{"step": 1, "tokens_per_second": 5.0}]).axes
    assert not left.texts and rate.texts and memory.texts
