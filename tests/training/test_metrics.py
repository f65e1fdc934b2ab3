"""The log of a training: readable after a kill, rewound at a resume."""

from pathlib import Path
from typing import Any

import polars as pl

from gateau_dagster.training.dataset import MixRows
from gateau_dagster.training.metrics import StepLog, peak_memory_bytes, read_log, rewind_log
from tests.training.builders import save_mix
from tests.training.test_dataset import plan_for


def test_a_torn_last_line_is_left_out_and_later_steps_are_forgotten(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    assert read_log(path) == []
    path.write_text('{"step": 1}\n{"step": 2}\n{"step": 3}\n{"ste')
    assert read_log(path) == [{"step": 1}, {"step": 2}, {"step": 3}]
    rewind_log(path, 2)
    assert path.read_text() == '{"step": 1}\n{"step": 2}\n'


def test_every_step_is_logged_and_reported(tmp_path: Path) -> None:
    mix = pl.read_parquet(save_mix(tmp_path / "mix.parquet", rows=6))
    rows = MixRows(mix, plan_for(mix["input_ids"].list.len().to_list(), epochs=1, accumulation=1))
    seen: list[dict[str, Any]] = []
    log = StepLog(tmp_path / "metrics.jsonl", rows=rows, first_step=1, total=3, report=seen.append)
    log.record(2, loss=2.5, learning_rate=0.1, grad_norm=None)
    log.record(3, loss=1.5, learning_rate=0.0, grad_norm=4.0)
    assert read_log(tmp_path / "metrics.jsonl") == seen
    assert [metrics["step"] for metrics in seen] == [2, 3]
    assert [metrics["loss"] for metrics in seen] == [2.5, 1.5]
    assert seen[1]["tokens"] == sum(rows.lengths)
    assert seen[0]["seconds_left"] > 0 == seen[1]["seconds_left"]
    assert all(metrics["tokens_per_second"] > 0 for metrics in seen)


def test_peak_memory_is_that_of_a_process_with_torch() -> None:
    assert 50 * 2**20 < peak_memory_bytes() < 2**40
