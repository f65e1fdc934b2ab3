"""The benchmark of the global steps: two small sizes for real, the arithmetic on given times."""

import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

Script = Callable[[str], ModuleType]


@pytest.mark.long
def test_two_sizes_are_measured_each_in_a_process_of_its_own(
    script: Script, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    global_steps = script("global_steps")
    monkeypatch.setattr(global_steps, "MOST_REPEATS", 1)
    given = ["--sizes", "400", "200", "--segments", "3", "--shards", "2", "--out"]
    assert global_steps.main([*given, str(tmp_path / "global_steps.json")]) == 0
    found = json.loads((tmp_path / "global_steps.json").read_text())
    small, large = found["sizes"]
    assert [small["rows"], large["rows"]] == [200, 400]
    (run,) = large["runs"]
    assert 390 <= run["combined_scores"]["rows"] <= 400
    assert run["selected_subset"]["rows"] == round(run["combined_scores"]["rows"] / 10)
    assert sum(run["combined_scores"]["steps"].values()) == pytest.approx(run["combined_scores"]["seconds"])
    assert set(run["combined_scores"]["steps"]) <= set(global_steps.STEPS)
    assert run["peak_bytes"] > run["start_bytes"] > 2**20
    assert found["summary"][1]["to_linear"] > 0
    printed = capsys.readouterr().out
    assert "| 400 | 1 |" in printed and "selected_subset: seconds by step" in printed
    assert [file.name for file in tmp_path.iterdir()] == ["global_steps.json"], "the tables are removed again"


def test_growth_is_told_as_a_multiple_of_the_rows(script: Script) -> None:
    def size(rows: int, seconds: float) -> dict[str, object]:
        asset = {"seconds": seconds / 2, "cpu_seconds": 1.0, "steps": {"read": seconds / 2}}
        return {"rows": rows, "runs": [{"combined_scores": asset, "selected_subset": asset, "peak_bytes": rows}]}

    lines = script("global_steps").summary([size(10, 1.0), size(100, 20.0)])
    assert lines[1]["to_linear"] == pytest.approx(2.0)
    assert lines[1]["rows_per_second"] == pytest.approx(5.0)
