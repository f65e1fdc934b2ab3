"""The benchmark of the presets on an untrained pair; and where `make` writes it."""

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import polars as pl
import pytest

from tests.project import ROOT


def test_a_table_and_its_json(
    script: Callable[[str], ModuleType], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "new" / "presets.json"
    given = ["--tiny", "--samples", "10", "--repeats", "1", "--seeds", "5", "--folder", str(tmp_path / "kept")]
    assert script("selection_presets").main([*given, "--out", str(out)]) == 0
    (found,) = json.loads(out.read_text())["seeds"]
    assert found["seed"] == 5 and list(found["presets"]) == ["paper", "official", "robust"]
    assert set(found["recall"]) == {"short", "long"} and set(found["recall"]["long"]) >= {"64", "1500"}
    printed = capsys.readouterr().out
    lines = printed[printed.index("seed  preset    AUROC: score    hmp    cas") :].splitlines()[1:]
    robust = found["presets"]["robust"]
    assert lines[2].split()[:5] == ["5", "robust", *(f"{robust[part]:.3f}" for part in ("score", "hmp", "cas"))]
    assert [line.split()[:4] for line in lines[3:]] == [["5", "recall", "of", name] for name in ("short", "long")]
    assert pl.read_parquet(tmp_path / "kept" / "presets" / "scores-seed5.parquet").height == 10


def test_every_benchmark_is_told_where_to_write() -> None:
    """`make -n` with a place of its own: no target forgets it, each script of its own file."""
    text = (ROOT / "Makefile").read_text()
    targets = [line.split(":")[0] for line in text.splitlines() if line.startswith("benchmark-")]
    command = ["make", "-n", "--silent", *targets, "BENCHMARKS=elsewhere"]
    done = subprocess.run(command, cwd=ROOT, env=os.environ, capture_output=True, text=True, check=True)
    lines = [line for line in done.stdout.splitlines() if " benchmarks/" in line]
    files = [line.split("--out elsewhere/")[1] for line in lines]
    assert len(lines) == len(targets) == len(set(files)) and all(file.endswith(".json") for file in files)
