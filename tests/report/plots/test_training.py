"""The training curve."""

import math

import numpy as np

from gateau_dagster.report.plots import training_curve
from gateau_dagster.report.plots.training import SMOOTH_ABOVE, curve

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


def test_what_was_not_logged_is_said() -> None:
    left, right = training_curve([{"step": 1, "loss": 2.0}]).axes
    assert not left.texts
    assert right.texts[0].get_text() == "no learning rate was logged"
