"""Plot of the fine-tuning run."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from gateau_dagster.plotting import CHECKPOINT, FAR, label, new_figure, say

SMOOTH_ABOVE = 30
"""Logged steps from which a running mean is drawn over the raw loss."""


def training_curve(log: Sequence[Mapping[str, Any]]) -> Figure:
    """Loss and learning rate by optimiser step. Each entry of `log`: `step`, and `loss` or `learning_rate` or both."""
    figure, (left, right) = new_figure("Fine-tuning on the selected samples", columns=2, height=3.2)
    _line(left, log, "loss", CHECKPOINT)
    label(left, x="optimiser step", y="loss (nats per response token)", title="loss")
    _line(right, log, "learning_rate", FAR)
    label(right, x="optimiser step", y="learning rate", title="learning rate")
    return figure


def curve(log: Sequence[Mapping[str, Any]], key: str) -> tuple[list[float], list[float]]:
    """Steps and finite values of `key`, in step order; of a step logged twice (resumed run) the last entry counts."""
    values = {float(entry["step"]): float(entry[key]) for entry in log if entry.get(key) is not None}
    points = sorted((step, value) for step, value in values.items() if np.isfinite(value))
    return [step for step, _ in points], [value for _, value in points]


def _line(axis: Axes, log: Sequence[Mapping[str, Any]], key: str, colour: str) -> None:
    steps, values = curve(log, key)
    if not steps:
        say(axis, f"no {key.replace('_', ' ')} was logged")
        return
    long = key == "loss" and len(values) >= SMOOTH_ABOVE
    marker = "o" if len(values) < SMOOTH_ABOVE else None
    axis.plot(steps, values, color=colour, linewidth=1.0 if long else 1.8, alpha=0.4 if long else 1.0, marker=marker,
              markersize=3.5)  # fmt: skip
    if long:
        width = max(3, len(values) // 12)
        smooth = np.convolve(values, np.ones(width) / width, mode="valid")
        axis.plot(steps[width // 2 : width // 2 + len(smooth)], smooth, color=colour, linewidth=2.2)
    axis.ticklabel_format(axis="y", style="sci", scilimits=(-3, 4))
    axis.set_ylim(bottom=0)
    axis.locator_params(axis="x", integer=True, nbins=6)
