"""Colours that can be told apart, and panels that speak."""

import itertools

import numpy as np
from matplotlib.colors import to_rgb

from gateau_dagster import plotting as style


def _luminance(colour: str) -> float:
    """Relative luminance by WCAG 2."""
    parts = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in to_rgb(colour)]
    return float(np.dot(parts, [0.2126, 0.7152, 0.0722]))


def test_text_reads_on_white() -> None:
    for colour in (style.INK, style.MUTED):
        assert 1.05 / (_luminance(colour) + 0.05) >= 4.5


def test_colours_that_meet_in_a_plot_differ_without_hue_too() -> None:
    for one, other in ((style.FAR, style.OTHER), (style.BASE, style.CHECKPOINT), (style.SELECTED, style.ALL)):
        light, dark = sorted((_luminance(one), _luminance(other)), reverse=True)
        assert (light + 0.05) / (dark + 0.05) > 1.5


def test_presets_have_colours_of_their_own() -> None:
    for one, other in itertools.combinations(style.PRESET_COLOURS.values(), 2):
        assert np.abs(np.subtract(to_rgb(one), to_rgb(other))).max() > 0.25


def test_a_figure_has_its_panels_and_title() -> None:
    figure, axes = style.new_figure("subject", columns=3, width=6, height=2)
    assert len(axes) == 3
    assert figure.get_suptitle() == "subject"
    assert tuple(figure.get_size_inches()) == (6, 2)
    style.say(axes[0], "nothing")
    assert axes[0].texts[0].get_text() == "nothing"
    assert list(axes[0].get_xticks()) == []
