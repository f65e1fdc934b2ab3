"""The benchmark of re-runs: what it changes in the input."""

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

Script = Callable[[str], ModuleType]


def test_only_the_asked_samples_change(script: Script, tmp_path: Path) -> None:
    rerun = script("rerun")
    options = argparse.Namespace(shards=2, tokens=96)
    file = rerun.make_project(tmp_path / "project", samples=6, options=options)
    path = file.parent / "long.jsonl"
    before = [json.loads(line) for line in path.read_text().splitlines()]
    for note in ("", "again"):
        rerun.change(file, [1, 4], note)
        after = [json.loads(line) for line in path.read_text().splitlines()]
        assert [new != old for new, old in zip(after, before, strict=True)] == [False, True, False, False, True, False]
        assert [row["id"] for row in after] == [row["id"] for row in before]
        before = after


def test_a_project_never_run_has_no_stamps(script: Script, tmp_path: Path) -> None:
    rerun = script("rerun")
    options = argparse.Namespace(shards=2, tokens=96)
    assert rerun.stamps(rerun.make_project(tmp_path / "project", samples=2, options=options)) == {}
