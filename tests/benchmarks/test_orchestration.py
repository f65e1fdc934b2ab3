"""The benchmark of orchestration: one of its ways for real, the arithmetic on given times."""

import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

Script = Callable[[str], ModuleType]


@pytest.mark.long
def test_shards_one_by_one_in_a_real_project(script: Script, tmp_path: Path) -> None:
    module = script("orchestration_ways")
    file = module.make_project(tmp_path / "project", shards=2, samples=3)
    timed = module.one_by_one(file, ["0", "1"])
    assert timed.shards == 2 and len(timed.outside) == 2
    assert 0 < timed.method < timed.wall
    assert all(0 < outside < timed.wall for outside in timed.outside)
    for name in ("raw_long_sft", "perplexity/short", "perplexity/long", "cam"):
        assert {each.name for each in (file.parent / "store" / name).glob("*.parquet")} == {"0.parquet", "1.parquet"}


def test_a_command_that_fails_is_an_error(script: Script, tmp_path: Path) -> None:
    module = script("orchestration_ways")
    with pytest.raises(RuntimeError, match=r"ended with 3(.|\n)*no such thing"):
        module.process([module.sys.executable, "-c", "print('no such thing'); exit(3)"], tmp_path / "gateau.yaml")


def test_the_figures(
    script: Script, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    module = script("orchestration")

    def timed(way: str, wall: float, outside: list[float]) -> Any:
        return module.Timed(way=way, shards=16, wall=wall, cpu=1.0, method=10.0, outside=outside)

    found = [timed("one run", 50.0, []), timed("one by one", 30.0, [1.0, 3.0, 2.0]), timed("own process", 99.0, [7.0])]
    assert module.share_of_minutes(found[0]) == 40.0 / 1000.0
    monkeypatch.setattr(module, "measure", lambda options, folder: found)
    assert module.main(["--out", str(tmp_path / "found.json")]) == 0
    printed = capsys.readouterr().out
    assert "one by one: 2 (target <= 4: met)" in printed and "own process: 7 (target <= 4: NOT MET)" in printed
    assert "share outside the method in 16 shards of one minute: 0.04 (target <= 0.1: met)" in printed
    assert json.loads((tmp_path / "found.json").read_text())["ways"][0]["way"] == "one run"
