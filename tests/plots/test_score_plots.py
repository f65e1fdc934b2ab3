"""Plots of scores and of what is selected."""

import numpy as np
import polars as pl
import pytest
from matplotlib.colors import to_hex
from matplotlib.patches import Rectangle

from gateau_dagster.config import PRESETS
from gateau_dagster.plots.score_plots import (
    MARKS,
    dependency_shares,
    ranking_curve,
    score_distributions,
    terms_scatter,
    text_lengths,
)
from gateau_dagster.plotting import FAR, to_svg


def scores(hmp: list[float | None], cas: list[float | None]) -> pl.DataFrame:
    """Combined scores where every preset has these terms, and the score and rank of their sum."""
    frame = pl.DataFrame({"h": hmp, "c": cas}, schema={"h": pl.Float64, "c": pl.Float64})
    total = pl.col("h") + pl.col("c").fill_null(-1.0)
    columns = {"context_tokens": pl.int_range(1, pl.len() + 1)}
    for preset in PRESETS:
        columns |= {f"hmp_{preset}": pl.col("h"), f"cas_{preset}": pl.col("c"), f"score_{preset}": total}
        columns |= {f"rank_{preset}": total.rank("ordinal", descending=True)}
    return frame.select(**columns)


_RNG = np.random.default_rng(0)
_FRAME = scores(_RNG.random(200).tolist(), [None, *_RNG.random(199).tolist()])
_LABELS = pl.Series([i % 4 == 0 for i in range(200)])


def _bars(axis: object) -> list[Rectangle]:
    return [patch for patch in axis.patches if isinstance(patch, Rectangle)]  # type: ignore[attr-defined]


def test_every_sample_with_both_terms_is_in_a_bar_of_its_group() -> None:
    assert len(score_distributions(_FRAME).axes) == len(PRESETS)
    for axis, known in ((axis, far) for far in (None, _LABELS) for axis in score_distributions(_FRAME, far=far).axes):
        assert sum(bar.get_height() for bar in _bars(axis)) == 199
        far = [bar for bar in _bars(axis) if to_hex(bar.get_facecolor()) == FAR]
        assert sum(bar.get_height() for bar in far) == (0 if known is None else 49)  # of 50, one has no CAS


def test_without_both_terms_the_panels_say_so() -> None:
    empty = scores([0.1, 0.2], [None, None])
    assert [axis.texts[0].get_text() for axis in score_distributions(empty).axes] == ["no sample has both terms"] * 3
    assert (
        "no sample has both terms"
        in score_distributions(empty, far=pl.Series([True, False])).axes[0].texts[0].get_text()
    )
    assert "shorter than two segments" in terms_scatter(empty, preset="paper").axes[0].texts[0].get_text()


def test_scatter_marks_samples_and_rings_none_before_there_is_a_selection() -> None:
    axis = terms_scatter(_FRAME, preset="robust", far=_LABELS).axes[0]
    sizes = [len(collection.get_offsets()) for collection in axis.collections]  # type: ignore[arg-type]
    assert sizes == [150, 49]


def test_scatter_rings_what_was_selected_whatever_its_rank() -> None:
    selected = (pl.col("rank_robust") % 9 == 4).fill_null(False)
    axis = terms_scatter(_FRAME.with_columns(selected=selected), preset="robust", far=_LABELS).axes[0]
    ringed = {tuple(point) for point in np.asarray(axis.collections[2].get_offsets())}
    assert ringed == set(
        _FRAME.filter(selected, pl.col("cas_robust").is_not_null()).select("hmp_robust", "cas_robust").rows()
    )


def test_of_many_samples_as_many_as_fit_are_drawn_as_pixels_and_the_title_says_so() -> None:
    count = MARKS * 4 + 2
    many = scores(_RNG.random(count).tolist(), _RNG.random(count).tolist())
    many = many.with_columns(selected=pl.col("rank_paper") <= count // 10)
    figure = terms_scatter(many, preset="paper")
    drawn, ringed = (len(figure.axes[0].collections[i].get_offsets()) for i in (0, 2))  # type: ignore[arg-type]
    assert drawn == -(-count // 5)
    assert abs(ringed - drawn / 10) <= 1
    assert f"({drawn:,} of {count:,} samples drawn)" in figure.get_suptitle()
    assert len(to_svg(figure)) < 300_000


@pytest.mark.parametrize("lengths", [[100, 200, 400, 800, 1600], [7, 7, 7], [0, 1, 50], [5]])
def test_both_lines_add_up_to_a_hundred(lengths: list[int]) -> None:
    frame = pl.DataFrame({"context_tokens": lengths, "response_tokens": lengths[::-1]})
    axes = text_lengths(frame, selected=pl.Series([i == 0 for i in range(len(lengths))])).axes
    assert [len(axis.patches) for axis in axes] == [2, 2]
    for steps in (each for axis in axes for each in axis.patches):
        assert np.sum(steps.get_data().values) == pytest.approx(100)  # type: ignore[attr-defined]


def test_nothing_selected_and_nothing_known() -> None:
    frame = pl.DataFrame({"context_tokens": [3, 9], "response_tokens": [1, 1]})
    axis = text_lengths(frame, selected=pl.Series([False, False])).axes[0]
    assert np.sum(axis.patches[1].get_data().values) == 0  # type: ignore[attr-defined]
    empty = text_lengths(frame.clear(), selected=pl.Series([], dtype=pl.Boolean)).axes[0]
    assert empty.texts[0].get_text() == "no context length is known"


def test_the_ranking_marks_the_choice_and_names_the_gap_at_its_cut() -> None:
    scores = pl.DataFrame({"score": [0.1, 0.4, float("nan"), 0.2, None, 0.3]})
    chosen = pl.Series([False, True, False, False, False, True])
    (axis,) = ranking_curve(scores, selected=chosen).axes
    assert np.asarray(axis.lines[0].get_xydata()).tolist() == [[1, 0.4], [2, 0.3], [3, 0.2], [4, 0.1]]
    assert np.asarray(axis.collections[0].get_offsets()).tolist() == [[1, 0.4], [2, 0.3]]
    assert axis.get_title(loc="left") == "lowest selected: 0.3; highest not selected: 0.2"
    ranking_curve(scores.clear(), selected=chosen.clear())


def test_dependency_bars_are_shares() -> None:
    found = ["near", "one_far", "one_far", "closed_book"]
    chosen = pl.Series([False, True, True, False])
    (axis,) = dependency_shares(pl.DataFrame({"dependency": found}), selected=chosen).axes
    names = [text.get_text().replace(" ", "_") for text in axis.get_yticklabels()]
    assert [bar.get_width() for bar in _bars(axis)] == [
        *(25.0 * found.count(name) for name in names),
        *(100.0 * (name == "one_far") for name in names),
    ]
