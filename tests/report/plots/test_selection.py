"""Context lengths as shares."""

import numpy as np
import polars as pl
import pytest

from gateau_dagster.report.plots import context_lengths
from gateau_dagster.report.plots.selection import ALL


@pytest.mark.parametrize("lengths", [[100, 200, 400, 800, 1600], [7, 7, 7], [0, 1, 50], [5]])
def test_both_lines_add_up_to_a_hundred(lengths: list[int]) -> None:
    frame = pl.DataFrame({"context_tokens": lengths})
    axis = context_lengths(frame, selected=pl.Series([i == 0 for i in range(len(lengths))])).axes[0]
    for steps in axis.patches:
        assert np.sum(steps.get_data().values) == pytest.approx(100)  # type: ignore[attr-defined]
    legend = axis.get_legend()
    assert legend is not None
    names = [text.get_text() for text in legend.get_texts()]
    assert names == [f"all scored samples ({len(lengths)})", "selected (1)"]


def test_nothing_selected_and_nothing_known() -> None:
    frame = pl.DataFrame({"context_tokens": [3, 9]})
    axis = context_lengths(frame, selected=pl.Series([False, False])).axes[0]
    assert np.sum(axis.patches[1].get_data().values) == 0  # type: ignore[attr-defined]
    empty = context_lengths(frame.clear(), selected=pl.Series([], dtype=pl.Boolean)).axes[0]
    assert empty.texts[0].get_text() == "no context length is known"
    assert ALL.startswith("#")
