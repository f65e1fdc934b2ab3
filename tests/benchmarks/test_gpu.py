"""The GPU script on a CPU with tiny models: all of it, parts that fail or come too late, and steps of training."""

import json
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gpu
import gpu_training
import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import TrainerCallback

from gateau_dagster.models.flops import ModelShape
from gateau_dagster.models.shapes import model_shape
from gateau_dagster.models.training_attention import NAME
from gateau_dagster.training.encode import IGNORED
from gateau_dagster.training.readiness import check_packages


@pytest.mark.long
def test_the_whole_script(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "gpu.json"
    status = gpu.main(["--tiny", "--device", "cpu", "--out", str(file)])
    found = json.loads(file.read_text())
    parts = found["parts"]
    assert not {name: part for name, part in parts.items() if "error" in part or "skipped" in part}
    assert status == 0 and found["tiny"]
    for kind in ("plain", "joint", "segments"):
        for name in (f"{kind} 128", f"{kind} 256", f"grouped {kind} 256"):
            assert parts[name]["flops"] > 0 and parts[name]["best_seconds"] > 0
        assert parts[f"kernels of {kind}"]["largest"] and parts[f"kernels of {kind}"]["attention"]
    assert max(parts["parity"]["float32"].values()) < 1e-4
    assert parts["straightforward"]["ratio"] > 0
    assert parts["whole samples, short"]["flops"] > parts["segments 128"]["flops"]
    printed = capsys.readouterr().out
    assert "parity with the CPU, float32" in printed and "share of peak, joint at 256" in printed


def test_a_part_that_fails_is_recorded_and_the_rest_goes_on(tmp_path: Path) -> None:
    parts = gpu.Parts(file=tmp_path / "gpu.json", budget_seconds=100, tiny=False)

    def fail() -> dict[str, object]:
        raise RuntimeError("CUDA out of memory.\nTried to allocate 20 GiB")

    parts.run("first", 10, fail)
    parts.run("too long", 1000, lambda: pytest.fail("there is no time for it"))
    parts.run("last", 10, lambda: {"value": 1})
    found = json.loads((tmp_path / "gpu.json").read_text())["parts"]
    assert found["first"]["error"] == "RuntimeError: CUDA out of memory."
    assert "it may take 1000" in found["too long"]["skipped"]
    assert found["last"]["value"] == 1


def test_numbers_that_differ_or_parts_that_fail_are_an_error() -> None:
    conclusions, settings = gpu.conclusions, gpu.QUICK
    good = {"float32": {"perplexity": 1e-6, "cas": 9e-5}, "bfloat16": {"perplexity": 9e-3}}
    assert conclusions({"parity": good}, settings)[1]
    assert not conclusions({"parity": good | {"float32": {"perplexity": 2e-4}}}, settings)[1]
    assert not conclusions({"parity": good, "model": {"error": "OutOfMemoryError: ..."}}, settings)[1]
    assert not conclusions({"parity": {"error": "no kernel"}}, settings)[1]


def test_rows_of_both_tables() -> None:
    measured = {"flops": 4e12, "best_seconds": 2.0, "tokens": 10, "total_peak_bytes": 2**30}
    results: dict[str, Any] = {
        "matrix_product_peak": {"flops_per_second": 4e12},
        "joint 16384": measured,
        "plain 4096": {"error": "x"},
        "training 1B": measured | {"recomputed_flops": 2e12},
        "training 8B": {"skipped": "1 s was left"},
        "training 9B": {"out_of_memory": "CUDA out of memory."},
    }
    assert gpu.rows_of(results) == [
        ["joint 16384", "2.000", "5", "2", "50%", "1.0"],
        ["plain 4096", "failed", "", "", "", ""],
    ]
    assert gpu.training_rows_of(results) == [
        ["1B", "2.000", "5", "2", "50%", "75%", "1.0"],
        ["8B", "no time", *[""] * 5],
        ["9B", "out of memory", *[""] * 5],
    ]
    assert "training 9B: CUDA out of memory." in gpu.reasons(results)
    lines, _ = gpu.conclusions(results | {"parity": {"error": "x"}}, gpu.FULL)
    assert lines[0] == "share of peak, joint at 16384: 0.5 (target >= 0.5: met)"
    del results["matrix_product_peak"]
    assert gpu.training_rows_of(results)[0] == ["1B", "2.000", "5", "2", "", "", "1.0"]


class Counter(TrainerCallback):
    """FLOPs of the matrix products of the first step."""

    def __init__(self) -> None:
        self.products = 0.0
        self._mode = FlopCounterMode(display=False)

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        self._mode.__enter__()

    def on_step_end(self, _: Any, __: Any, control: Any, **___: Any) -> None:
        self._mode.__exit__(None, None, None)
        counts = self._mode.get_flop_counts()["Global"]
        self.products = float(sum(value for name, value in counts.items() if str(name) in ("aten.mm", "aten.addmm")))
        control.should_training_stop = True


def tiny_case(*, lora: bool = False, tokens: int = 64, short: bool = False, liger: bool = False) -> gpu_training.Case:
    settings = gpu_training.QUICK_TRAINING
    return gpu_training.Case(model=settings.large if lora else settings.small, tokens=tokens, short=short, liger=liger)


def attention_flops(prepared: Any) -> float:
    """Forward, of what the row's documents attend to."""
    shape = model_shape(prepared.trainer.model.config)
    lengths = np.array(prepared.trainer.train_dataset.lengths, dtype=np.float64)
    return float(shape.attention_flops(lengths).sum())


@pytest.mark.parametrize("lora", [False, True])
@pytest.mark.parametrize("short", [False, True])
def test_the_flops_are_those_of_a_real_step(tmp_path: Path, lora: bool, short: bool) -> None:
    """All but the attention's, of which a CPU's kernel counts more than the causal half: exactly."""
    prepared = gpu_training.prepare(tiny_case(lora=lora, short=short), gpu_training.QUICK_TRAINING, tmp_path)
    counter = Counter()
    prepared.trainer.add_callback(counter)
    prepared.trainer.train()
    counted, recomputed = prepared.flops.counted, prepared.flops.recomputed
    attention = attention_flops(prepared)
    assert counter.products == counted + recomputed - 4 * attention
    assert attention > 0 and recomputed < counted / 2


def test_six_flops_a_weight_and_token() -> None:
    shape = ModelShape(layers=2, hidden=8, heads=2, kv_heads=1, head_dim=4, intermediate=16, vocabulary=50)
    weights = 2 * (8 * 8 * 2 + 8 * 4 * 2 + 3 * 8 * 16)
    pairs = 2 * (2 * 8) * (3 * 4 / 2 + 5 * 6 / 2)  # layers, query and value products, documents of 3 and 5 tokens
    found = gpu_training.step_flops(shape, [3, 5], trained_tokens=4)
    assert found.counted == 6 * weights * 8 + 6 * 8 * 50 * 4 + 3 * 2 * pairs
    assert found.recomputed == 2 * (weights - 2 * 8 * 16) * 8 + 2 * pairs


def test_a_case_runs_the_code_that_trains() -> None:
    settings = replace(gpu_training.QUICK_TRAINING, enough_seconds=1e9)
    found = gpu_training.measure_case(tiny_case(short=True), settings)
    json.dumps(found)
    used = found["used"]
    assert used["model"]["attention"] == NAME
    assert used["model"]["chunked_loss"] and used["model"]["gradient_checkpointing"]
    assert used["model"]["master_weights"] == ["float32"] and used["deepspeed"] is None
    assert used["optimizer"]["class"].endswith(".AdamW")
    assert used["data"]["longest_row"] == found["tokens"] == 64 and used["data"]["steps"] == 4
    assert len(found["seconds"]) == 3 and found["best_seconds"] == min(found["seconds"])
    assert found["trained_parameters"] == found["parameters"] and len(found["losses"]) == 4
    assert found["losses"][-1] < found["losses"][0]  # the same row again: it has learned
    assert found["held_bytes"] > 0 and found["total_peak_bytes"] > 0


def test_lora_trains_a_part_and_enough_seconds_end_it() -> None:
    found = gpu_training.measure_case(tiny_case(lora=True), replace(gpu_training.QUICK_TRAINING, enough_seconds=1e-9))
    assert 0 < found["trained_parameters"] < found["parameters"]
    assert len(found["seconds"]) == 1


@pytest.mark.parametrize("tokens", [64, 96, 8192])
def test_documents_fill_the_row(tokens: int) -> None:
    settings = gpu_training.QUICK_TRAINING if tokens < 8192 else gpu_training.FULL_TRAINING
    case = tiny_case(tokens=tokens, short=True)
    lengths = gpu_training.document_lengths(case, settings)
    shortest, longest = settings.short_lengths
    assert sum(lengths) == tokens and shortest <= min(lengths) and max(lengths[:-1]) <= longest
    assert len(lengths) > 2
    assert gpu_training.document_lengths(replace(case, short=False), settings) == [tokens]
    rows, plan, trained = gpu_training.row_of(case, settings)
    documents = rows[0]
    assert len(rows) == plan.steps == 4 and [len(each.input_ids) for each in documents] == lengths
    labels = torch.cat([each.labels for each in documents])
    assert int((labels != IGNORED).sum()) == trained == sum(n // 2 for n in lengths)
    assert [each.row for each in rows[3]] == [each.row for each in documents]


def test_memory_that_does_not_suffice_is_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    def train(_: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB.\nmore")

    monkeypatch.setattr(gpu_training.Trainer, "train", train)
    found = gpu_training.measure_case(tiny_case(), gpu_training.QUICK_TRAINING)
    assert found == {"out_of_memory": "CUDA out of memory. Tried to allocate 2 GiB."}
    assert gpu.conclusions({"training 1B": found}, gpu.QUICK) == ([], True)


@pytest.mark.parametrize(("installed", "expected"), [(False, "not installed"), (True, "no GPU")])
def test_liger_where_it_is_not(monkeypatch: pytest.MonkeyPatch, installed: bool, expected: str) -> None:
    monkeypatch.setattr(gpu_training, "check_packages", partial(check_packages, installed=lambda _: installed))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    found = gpu_training.measure_case(tiny_case(liger=True), gpu_training.QUICK_TRAINING)
    assert found["left_out"] == expected and "training.liger" in found["reason"]


def test_training_has_seconds_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(gpu, "time", SimpleNamespace(monotonic=lambda: now[0]))
    parts = gpu.Parts(file=tmp_path / "gpu.json", budget_seconds=500, tiny=False)
    now[0] = 100.0
    parts.allow(240)
    now[0] = 310.0
    parts.run("fits", 30, lambda: {"value": 1})
    parts.run("does not", 31, lambda: {"value": 1})
    assert "value" in parts.results["fits"] and "30 s were left" in parts.results["does not"]["skipped"]
    parts.allow(1000)  # it never adds any
    parts.run("still not", 31, lambda: {"value": 1})
    assert "skipped" in parts.results["still not"]


@pytest.mark.long
def test_training_alone(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    settings = replace(gpu_training.QUICK_TRAINING, lengths=(64, 96), at_most_seconds=(0, 0), enough_seconds=1e-9)
    monkeypatch.setattr(gpu, "QUICK_TRAINING", settings)
    file = tmp_path / "gpu.json"
    assert gpu.main(["--tiny", "--device", "cpu", "--only", "training", "--out", str(file)]) == 0
    parts = json.loads(file.read_text())["parts"]
    assert "parity" not in parts and "model" not in parts
    measured = {name: part for name, part in parts.items() if "recomputed_flops" in part}
    wanted = {case.name for case in settings.cases if not case.liger}
    assert set(measured) >= wanted and not [part for part in parts.values() if "error" in part or "skipped" in part]
    printed = capsys.readouterr().out
    for name in wanted:
        assert name.removeprefix("training ") in printed
    assert "with recomputation" in printed and "bfloat16 autocast" in printed


def test_scoring_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parity = {"float32": {"cas": 0.0}, "bfloat16": {"cas": 0.0}}
    monkeypatch.setattr(gpu, "score_all", lambda _, parts: parts.run("parity", 0, lambda: parity))
    monkeypatch.setattr(gpu, "measure_case", lambda *_: pytest.fail("training was not asked for"))
    file = tmp_path / "gpu.json"
    assert gpu.main(["--tiny", "--device", "cpu", "--only", "scoring", "--out", str(file)]) == 0
    given = ["machine", "attention_backends", "matrix_product_peak"]
    assert list(json.loads(file.read_text())["parts"]) == [*given, "parity"]


class FewLongRows(gpu_training.LongSettings):
    @property
    def cases(self) -> Iterator[gpu_training.Case]:
        every = list(super().cases)
        yield from (every[0], every[2], every[5])


@pytest.mark.long
def test_long_rows_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(gpu, "QUICK_LONG_TRAINING", FewLongRows(**vars(gpu_training.QUICK_LONG_TRAINING)))
    file = tmp_path / "gpu.json"
    assert gpu.main(["--tiny", "--device", "cpu", "--only", "long", "--out", str(file)]) == 0
    parts = json.loads(file.read_text())["parts"]
    found = [part for name, part in parts.items() if name.startswith(gpu_training.PREFIX)]
    assert [part["tokens"] for part in found] == [32, 64, 128]
    assert [part["used"]["model"]["chunked_loss"] for part in found] == [True, False, True]
    assert [part["used"]["model"]["mlp_tile_tokens"] for part in found] == [None, None, 24]
    assert [part["used"]["model"]["offloaded_activations"] for part in found] == [False, False, True]
    assert all(part["used"]["deepspeed"]["zero_stage"] == 2 and len(part["seconds"]) == 1 for part in found)
    assert "transformers alone" in capsys.readouterr().out
    # Trainings without DeepSpeed run in this process again.
    assert gpu_training.measure_case(tiny_case(), gpu_training.QUICK_TRAINING)["used"]["deepspeed"] is None
