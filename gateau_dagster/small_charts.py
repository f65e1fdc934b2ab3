"""Draw charts small enough for Dagster to show them inline on an asset's page.

The UI shows Markdown inline if it has fewer than `INLINE_LIMIT` characters, and hides longer Markdown behind a link. A
PNG that small shows nothing; an SVG of a path and some words fits.
"""

from collections.abc import Callable, Iterable, Sequence
from html import escape
from math import isfinite
from urllib.parse import quote

import numpy as np
from numpy.typing import NDArray

from gateau_dagster.plotting import BASE, CHECKPOINT, FAR, SELECTED, edges
from gateau_dagster.readable import PageAmount, PageChart, number, percent, printable

INLINE_LIMIT = 1000
"""The UI shows Markdown with fewer characters than this inline (dagster-webserver 1.13)."""
_WIDTH, _HEIGHT, _BINS, _POINTS = 360, 72, 36, 40
_NAME, _MOST_ROWS, _ROW, _LEFT = 22, 10, 17, 190
_LETTERS = "#7d8b99"  # readable on the UI's light and dark page
_SAFE = " '=/:;,()"


def histogram(values: NDArray[np.float64], *, name: str, cut: float | None = None, cut_name: str = "cut") -> str:
    """Return Markdown of a histogram of values [n], with a line at `cut`; NaN and infinite values are left out."""
    known = values[np.isfinite(values)]
    if not known.size:
        return f"no {name} is known"
    bins = edges(known, most=_BINS)
    counts, _ = np.histogram(known, bins)
    heights = np.ceil(_HEIGHT * counts / counts.max()).astype(int)
    places = np.linspace(0, _WIDTH, len(bins)).round().astype(int)
    steps = "".join(f"V{_HEIGHT - height}H{end}" for height, end in zip(heights, places[1:], strict=True))
    parts = [f"<path fill='{CHECKPOINT}' d='M0 {_HEIGHT}{steps}V{_HEIGHT}z'/>", *_ends(bins[0], bins[-1])]
    alt = f"Histogram of {name}, {known.size:,} values"
    if cut is not None:
        place = round(_WIDTH * float((cut - bins[0]) / (bins[-1] - bins[0])))
        side = f" x='{place + 4}'" if place < _WIDTH / 2 else f" x='{place - 4}' text-anchor='end'"
        parts += [f"<path stroke='{FAR}' stroke-width='2' d='M{place} 0V{_HEIGHT}'/>"]
        parts += [f"<text y='9'{side}>{cut_name} {number(cut, 3)}</text>"]
        alt += f"; {cut_name} {number(cut, 3)}"
    return _markdown(_svg(parts, _HEIGHT + 14), alt)


def shares(amounts: Sequence[tuple[str, float]], *, name: str) -> str:
    """Return Markdown of one bar per name with an amount >= 0, as shares of the sum; the smallest are merged."""
    total = sum(amount for _, amount in amounts)
    if total <= 0:
        return f"there is no {name}"
    ordered = sorted(amounts, key=lambda item: -item[1])

    def drawn(rows: int) -> str:
        rest = ordered[rows - 1 :]
        others = f"{len(rest)} others", sum(amount for _, amount in rest)
        shown = ordered if rows == len(ordered) else [*ordered[: rows - 1], others]
        places = [(0.0, amount / total) for _, amount in shown]
        parts = [f"<path fill='{SELECTED}' d='{_bars(enumerate(places))}'/>"]
        parts += _lines([f"{_short(each)} {percent(amount / total, 0)}" for each, amount in shown])
        return _image(_svg(parts, _ROW * len(shown)), f"Shares of {name}")

    return _largest_that_fits(drawn, len(ordered))


def bars(chart: PageChart) -> str:
    """Return Markdown of a bar from 0 per amount, with its interval; the last ones are left out if they do not fit."""
    amounts = [each for each in chart.amounts if isfinite(each.value)]
    if not amounts:
        return f"no {chart.name} is known"
    ends = [0.0, *(end for each in amounts for end in (each.value, each.low, each.high) if end is not None)]
    least, span = min(ends), (max(ends) - min(ends)) or 1.0

    def drawn(rows: int) -> str:
        shown = amounts[:rows]
        values = [percent(each.value) if chart.share else number(each.value, 3) for each in shown]
        lines = [f"{_short(each.name)} {value}" for each, value in zip(shown, values, strict=True)]
        if rows < len(amounts):
            shown, lines = shown[:-1], [*lines[:-1], f"and {len(amounts) - rows + 1} more"]
        parts = []
        for colour, is_reference in ((BASE, True), (CHECKPOINT, False)):
            places = [
                (row, sorted(((0.0 - least) / span, (each.value - least) / span)))
                for row, each in enumerate(shown)
                if each.reference is is_reference
            ]
            parts += [f"<path fill='{colour}' d='{_bars(places)}'/>"] if places else []
        parts += _intervals(shown, least, span) + _lines(lines)
        return _image(_svg(parts, _ROW * len(lines)), chart.name)

    return _largest_that_fits(drawn, len(amounts))


def curve(values: Sequence[float], *, name: str) -> str:
    """Return Markdown of a line through ordered values [n], such as a loss by step."""
    known = np.asarray([value for value in values if np.isfinite(value)], dtype=np.float64)
    if known.size < 2:
        return f"no {name} is known" if not known.size else f"{name} {number(float(known[0]))}"
    taken = known[np.linspace(0, known.size - 1, min(_POINTS, known.size)).round().astype(int)]
    low, high = float(taken.min()), float(taken.max())
    heights = 2 + (_HEIGHT - 4) * (high - taken) / ((high - low) or 1.0)
    places = np.linspace(0, _WIDTH, taken.size)
    points = "L".join(f"{round(x)} {round(y)}" for x, y in zip(places, heights, strict=True))
    line = f"<path fill='none' stroke='{CHECKPOINT}' stroke-width='2' d='M{points}'/>"
    first, last = float(known[0]), float(known[-1])
    alt = f"{name} from {number(first, 3)} to {number(last, 3)}"
    return _markdown(_svg([line, *_ends(first, last)], _HEIGHT + 14), alt)


def _ends(low: float, high: float) -> list[str]:
    """Return the texts below the two ends of the axis."""
    end, bottom = f"x='{_WIDTH}' text-anchor='end'", _HEIGHT + 12
    return [
        f"<text y='{bottom}'>{number(float(low), 3)}</text>",
        f"<text y='{bottom}' {end}>{number(float(high), 3)}</text>",
    ]


def _short(name: str) -> str:
    shown = printable(name)
    # Names of variants differ at their ends.
    return escape(shown if len(shown) <= _NAME else f"{shown[: _NAME - 9]}…{shown[-8:]}", quote=False)


def _largest_that_fits(drawn: Callable[[int], str], rows: int) -> str:
    """Return the result of `drawn` for the largest number of rows that is shown inline."""
    found = (drawn(count) for count in range(min(_MOST_ROWS, rows), 0, -1))
    return next(each for each in found if len(each) < INLINE_LIMIT)


def _lines(texts: Sequence[str]) -> list[str]:
    """Return one text per row, left of its bar."""
    return [f"<text y='{_ROW * row + 12}'>{text}</text>" for row, text in enumerate(texts)]


def _bars(places: Iterable[tuple[int, Sequence[float]]]) -> str:
    """Return the path of rectangles, one per row, from one part of the width to another."""
    found = ((row, *(_LEFT + round((_WIDTH - _LEFT) * part) for part in ends)) for row, ends in places)
    return "".join(f"M{start} {_ROW * row + 3}H{end}v10H{start}" for row, start, end in found)


def _intervals(amounts: Sequence[PageAmount], least: float, span: float) -> list[str]:
    """Return a line across each bar's end."""
    places = [
        f"M{_LEFT + round((_WIDTH - _LEFT) * (each.low - least) / span)} {_ROW * row + 8}"
        f"H{_LEFT + round((_WIDTH - _LEFT) * (each.high - least) / span)}"
        for row, each in enumerate(amounts)
        if each.low is not None and each.high is not None
    ]
    return [f"<path stroke='{FAR}' stroke-width='2' d='{''.join(places)}'/>"] if places else []


def _svg(parts: Sequence[str], height: int) -> str:
    head = f"<svg xmlns='http://www.w3.org/2000/svg' width='{_WIDTH}' height='{height}' "
    return f"{head}font-family='sans-serif' font-size='11' fill='{_LETTERS}'>{''.join(parts)}</svg>"


def _image(svg: str, alt: str) -> str:
    """Return the image in Markdown, escaped so that nothing in it can end the image or its alternative text."""
    safe = "".join(character for character in alt if character not in "[]()\\\n")
    return f"![{safe}](<data:image/svg+xml,{quote(svg, safe=_SAFE)}>)"


def _markdown(svg: str, alt: str) -> str:
    found = _image(svg, alt)
    assert len(found) < INLINE_LIMIT, f"a chart of {len(found)} characters is not shown in place"
    return found
