"""`benchmarks/daily.py`: what it concludes from its times, and a whole run of it."""

import json
from pathlib import Path

import daily
import pytest


def test_ratios_are_of_times_of_the_same_round() -> None:
    rounds = (1.0, 2.0, 4.0)  # the machine gets slower
    found = {
        "base": {"": [(each, 0.1 * each) for each in rounds]},
        "now": {name: [(each, 0.5 * each) for each in rounds] for name in daily.COMMANDS},
        "before": {name: [(each, 1.5 * each) for each in rounds] for name in daily.COMMANDS},
    }
    for result in daily.summary(found).values():
        assert result["wall"].median == 2.0 and result["before_cpu"].median == 3.0
        assert (result["of_base"].lower, result["of_base"].upper) == pytest.approx((5.0, 5.0))
        assert (result["faster"].lower, result["faster"].upper) == pytest.approx((3.0, 3.0))


@pytest.mark.long
def test_every_command_is_measured(tmp_path: Path) -> None:
    options = ["--samples", "12", "--shards", "2", "--rounds", "1", "--folder", str(tmp_path / "kept")]
    assert daily.main([*options, "--out", str(tmp_path / "daily.json")]) == 0
    found = json.loads((tmp_path / "daily.json").read_text())
    assert [*found["commands"]] == [*daily.COMMANDS]
    assert all(each["of_base"]["median"] > 0 for each in found["commands"].values())
