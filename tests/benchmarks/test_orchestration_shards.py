"""The benchmark of many shards: what it changes for real, its arithmetic on given figures."""

import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from gateau_dagster.data.sample import shard_of

Script = Callable[[str], ModuleType]


def test_one_sample_of_each_shard_is_changed(script: Script, tmp_path: Path) -> None:
    module, data = script("orchestration_shards"), tmp_path / "long.jsonl"
    records = [{"id": f"s{number}", "response": "w1"} for number in range(40)]
    data.write_text("".join(json.dumps(record) + "\n" for record in records))
    module.change_a_sample_of_each_shard(data, 8)
    changed = [record["id"] for record in map(json.loads, data.read_text().splitlines()) if record["response"] != "w1"]
    shards = [shard_of(name, 8) for name in changed]
    assert sorted(shards) == sorted({shard_of(f"s{number}", 8) for number in range(40)})


def test_the_figures(
    script: Script, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    module = script("orchestration_shards")
    found = [
        module.Step(name="plan, nothing there", cpu=9.0, wall=10.0),
        module.Step(name="run", cpu=40.0, wall=50.0, method=3.0, log=16_000_000),
        module.Step(name="plan, all up to date", cpu=16.0, wall=16.0),
    ]
    monkeypatch.setattr(module, "measure", lambda options, folder: found)
    assert module.main(["--shards", "200", "--out", str(tmp_path / "found.json")]) == 0
    printed = capsys.readouterr().out
    assert "CPU seconds of a plan, at most: 16 (target <= 15: NOT MET)" in printed
    assert "CPU ms a shard and table, run: 50 (target <= 60: met)" in printed
    assert "kB of event log a shard and table, run: 20 (target <= 15: NOT MET)" in printed
    assert json.loads((tmp_path / "found.json").read_text())["settings"]["records"] == "SQLite"


def test_the_log_is_what_the_home_holds(script: Script, tmp_path: Path) -> None:
    home = tmp_path / ".gateau" / "dagster" / "history"
    home.mkdir(parents=True)
    (home / "index.db").write_bytes(b"x" * 1000)
    assert script("orchestration_shards").size_of_home(tmp_path / "gateau.yaml") == 1000
