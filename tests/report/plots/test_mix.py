"""The contents of a training mix as bars."""

import numpy as np
import polars as pl
import pytest
from matplotlib.axes import Axes

from gateau_dagster.report.plots import mix_contents
from gateau_dagster.report.plots.mix import MOST_SOURCES

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
    assert [text.get_text() for text in left.get_legend().get_texts()] == ["long (10)", "short (20)"]  # type: ignore[union-attr]


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


def test_a_mix_of_one_origin_has_one_colour() -> None:
    left, _ = mix_contents(sequences(("short", "c"))).axes
    assert len(left.containers) == 1


def test_lengths_that_hardly_differ_have_a_plain_axis() -> None:
    for longest, scale in ((64, "linear"), (8 * 64, "linear"), (9 * 64, "log")):
        frame = sequences(("long", "a")).with_columns(tokens=pl.Series([64] * 9 + [longest]))
        left, _ = mix_contents(frame).axes
        assert left.get_xscale() == scale
        assert sum(bar.get_height() for bar in left.containers[0]) == 10  # type: ignore[attr-defined]
