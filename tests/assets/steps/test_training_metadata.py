"""What the page of a trained model shows: outcome, curve, some steps, batches, settings, distances."""

from itertools import pairwise
from typing import Any

from gateau_dagster.assets import trained_model


def test_some_steps_are_spread_over_the_training_and_hold_both_ends() -> None:
    log: list[dict[str, Any]] = [{"step": step, "loss": 1 / step, "extra": 0} for step in range(1, 101)]
    shown = trained_model._some(log)
    assert len(shown) == 20
    assert (shown[0]["step"], shown[-1]["step"]) == (1, 100)
    assert {later["step"] - step["step"] for step, later in pairwise(shown)} == {5, 6}
    assert all(set(row) == set(trained_model._COLUMNS) for row in shown)
    assert [(row["step"], row["loss"]) for row in trained_model._some(log[:3])] == [(1, 1.0), (2, 0.5), (3, 0.333)]
