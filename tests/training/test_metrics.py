"""The log of a training: readable after a kill, rewound at a resume."""

import json
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
    said: list[str] = []
    rewind_log(path, 2, said.append)
    assert read_log(path) == [{"step": 1}, {"step": 2}] and not said


def test_no_flipped_bit_of_a_line_costs_another_line_or_is_taken_for_the_truth(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    steps = [{"step": step, "loss": 2.5, "grad_norm": float("nan")} for step in (1, 2, 3)]
    path.write_text("".join(json.dumps(metrics) + "\n" for metrics in steps))
    rewind_log(path, 3)
    whole, told = path.read_bytes(), 0
    first = whole.index(b"\n")
    for bit in range(8 * first):
        said: list[str] = []
        data = bytearray(whole)
        data[bit // 8] ^= 1 << bit % 8
        path.write_bytes(data)
        rewind_log(path, 3, said.append)
        left = read_log(path)
        assert [metrics["step"] for metrics in left][-2:] == [2, 3]
        if said:
            assert "metrics.jsonl has " in said[0] and "damaged line" in said[0] and len(left) == 2
            told += 1
        else:
            assert [left[0][name] for name in ("step", "loss")] == [1, 2.5], "white space, or the digest's name"
    assert told > 7 * first


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
