"""How every plot looks: one palette that colour-blind readers can tell apart, light grid, readable sizes."""

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

INK, MUTED, GRID = "#1b2733", "#5b6b7a", "#e6ebf0"
# Okabe and Ito's colours, the light ones darkened a little so that they read on white.
PRESET_COLOURS = {"paper": "#b7588c", "official": "#d08700", "robust": "#0072b2"}
FAR, OTHER = "#d55e00", "#8fb8d6"
BASE, CHECKPOINT = "#8996a3", "#0072b2"
SELECTED, ALL = "#009e73", "#c3cdd6"


def new_figure(
    title: str, *, columns: int = 1, width: float = 10.2, height: float = 3.4
) -> tuple[Figure, Sequence[Axes]]:
    """A figure of `width` x `height` inches with `columns` panels side by side, and its title at the top left.

    Made without pyplot: no global state, so that plots may be drawn in any thread.
    """
    figure = Figure(figsize=(width, height), layout="constrained", facecolor="white")
    axes = figure.subplots(1, columns, squeeze=False)[0]
    figure.suptitle(title, x=0.008, ha="left", fontsize=12, fontweight="bold", color=INK)
    for axis in axes:
        _clean(axis)
    return figure, list(axes)


def _clean(axis: Axes) -> None:
    axis.spines[["top", "right"]].set_visible(False)
    axis.spines[["left", "bottom"]].set_color("#b9c4ce")
    axis.tick_params(colors=MUTED, labelsize=8.5, length=3)
    axis.grid(True, color=GRID, linewidth=0.8)
    axis.set_axisbelow(True)


def label(axis: Axes, *, x: str, y: str, title: str | None = None) -> None:
    """Name what is on the axes, with units."""
    axis.set_xlabel(x, fontsize=9.5, color=INK)
    axis.set_ylabel(y, fontsize=9.5, color=INK)
    if title is not None:
        axis.set_title(title, fontsize=10, color=INK, loc="left")


def legend(axis: Axes, **options: object) -> None:
    """A legend without a box."""
    axis.legend(frameon=False, fontsize=8.5, labelcolor=INK, **options)  # type: ignore[arg-type]


def say(axis: Axes, text: str) -> None:
    """Write `text` into an empty panel: an empty panel without a word looks like a fault."""
    axis.grid(False)
    axis.set_xticks([])
    axis.set_yticks([])
    axis.spines[["left", "bottom"]].set_visible(False)
    axis.text(0.5, 0.5, text, ha="center", va="center", color=MUTED, fontsize=10, transform=axis.transAxes)


def shortened(name: str, *, most: int = 26) -> str:
    """A name that fits beside an axis: at most `most` characters of its two ends, and no `$` starts a formula."""
    short = name if len(name) <= most else f"{name[: most - 9]}…{name[-8:]}"
    return short.replace("$", r"\$")
