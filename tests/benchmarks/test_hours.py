"""The documentation's table of hours is what the script says, and the script says what the estimator does."""

from pathlib import Path

import hours
import numpy as np
import pytest

ROOT = Path(__file__).parents[2]


def test_the_page_has_the_table_and_its_assumptions() -> None:
    page = (ROOT / "docs/how-to/machines.md").read_text()
    options = hours.parse(["--samples", "10000"])
    title, rule, row, _, assumed = hours.lines(options)
    for line in (title, rule, row):
        assert f"{line}\n" in page
    assert " ".join(assumed.split()) in " ".join(page.split())


def test_more_gpus_take_less_up_to_the_largest_shard() -> None:
    options = hours.parse(["--shards", "4", "--mean-tokens", "1000"])
    steps = hours.seconds(200, options)
    alone = hours.wall_seconds(steps, 1)
    assert alone == pytest.approx(sum(step.sum() for step in steps))
    assert hours.wall_seconds(steps, 4) == pytest.approx(sum(step.max() for step in steps))
    assert hours.wall_seconds(steps, hours.ONE_MACHINE) == hours.wall_seconds(steps, 4)
    slow = [1e4 * step for step in steps]
    assert hours.wall_seconds(slow, 400) < hours.wall_seconds(slow, hours.ONE_MACHINE) / 20, "Ray cuts shards"
    assert (steps[1] > steps[0]).all(), "theta_B has the segments besides"
    faster = hours.seconds(200, hours.parse(["--shards", "4", "--mean-tokens", "1000", "--tflops", "1200"]))
    assert hours.wall_seconds(faster, 1) == pytest.approx(alone / 2)


def test_contexts_have_the_mean_that_is_asked_for() -> None:
    found = hours.contexts(10_000, hours.parse(["--mean-tokens", "500"]))
    assert float(np.mean(found)) == pytest.approx(500, rel=0.01)


@pytest.mark.parametrize(("seconds", "text"), [(90, "2 min"), (3600, "1.0 h"), (7.2e6, "2,000 h")])
def test_times(seconds: float, text: str) -> None:
    assert hours.shown(seconds) == text
