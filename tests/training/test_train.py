"""A training against a slow loop: losses, gradients, weights, what it writes and what it refuses."""

import json
import math
import os
import pkgutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import polars as pl
import pytest
import torch
from pydantic import ValidationError
from transformers import AutoModelForCausalLM, AutoTokenizer

from gateau_dagster.config.models import Template
from gateau_dagster.config.training import TrainingConfig
from gateau_dagster.errors import GateauError
from gateau_dagster.storage import fence
from gateau_dagster.storage.fence import LeaseLostError, Token, holding
from gateau_dagster.storage.files import Files
from gateau_dagster.tables import TRAINING_MIX, schema
from gateau_dagster.training.batch_plan import plan_batches
from gateau_dagster.training.dataset import MixRows, PadRight
from gateau_dagster.training.metrics import read_log
from gateau_dagster.training.model import load_base, plan_statistics, set_ends
from gateau_dagster.training.readiness import check_device, check_packages, check_ranks
from gateau_dagster.training.train import make_trainer, plan_of, read_mix, train, training_arguments
from tests.kit.error_codes import refused
from tests.training.builders import (
    CHAT_TEMPLATE,
    compare_with_loop,
    log_of,
    make_spec,
    poisoned,
    result_of,
    run,
    save_model,
    weights_differ,
)

ROWS: dict[str, Any] = {"pack_length": 90, "balanced": False, "max_steps": 4, "weight_decay": 0.1}
CONCATENATED = {"batching": "concatenated", **ROWS}  # a row is one long sequence of the plain model
PACKED: dict[str, Any] = {"batching": "packed", "pack_length": 90, "skip": {"length": 500}}


@pytest.mark.parametrize(
    ("changes", "steps"),
    [
        ({"epochs": 3.5}, 10),
        (CONCATENATED, 4),
        ({"loss": "longce", "epochs": 3.5}, 10),
        ({"loss": "longce", "max_steps": 4, **PACKED}, 4),
        ({"loss": "far_gain", "max_steps": 4}, 4),
        ({"loss": "far_gain", "max_steps": 4, **PACKED}, 4),
        ({"loss": "exact", "max_steps": 3, "batching": "packed", "pack_length": 64}, 3),
        pytest.param({"loss": "sequence", **CONCATENATED}, 4, marks=pytest.mark.long),
        # Sorted, each epoch of eleven documents is filled up to whole passes.
        pytest.param({"loss": "longce", "batching": "sorted", "epochs": 3.5}, 11, marks=pytest.mark.long),
        pytest.param({"loss": "longce", **CONCATENATED}, 4, marks=pytest.mark.long),
        pytest.param({"loss": "far_gain", **CONCATENATED}, 4, marks=pytest.mark.long),
    ],
)
def test_a_training_is_the_slow_loop_s(tmp_path: Path, changes: dict[str, Any], steps: int) -> None:
    spec = make_spec(tmp_path, **changes)
    reported = run(spec)
    losses = compare_with_loop(spec, weights=2e-5)
    assert len(reported) == len(losses) == steps and ("loss" in changes or losses[-1] < losses[0])
    assert (reported[-1]["step"], reported[-1]["total"], reported[-1]["seconds_left"]) == (steps, steps, 0)


def test_the_output_is_a_whole_model_folder(tmp_path: Path) -> None:
    spec = replace(make_spec(tmp_path, max_steps=2, dtype="bfloat16"), rope_theta=5e5)
    save_model(tmp_path / "tied", tied=True)
    spec = replace(spec, base_model=str(tmp_path / "tied"))
    spec.output.mkdir(parents=True)
    (spec.output / "old").write_text("an older training's result")
    steps = run(spec)
    model = AutoModelForCausalLM.from_pretrained(spec.output)
    assert model.dtype == torch.bfloat16
    assert model.config.rope_parameters["rope_theta"] == 5e5
    assert model.config.use_cache
    assert model.lm_head.weight is model.model.embed_tokens.weight
    assert AutoTokenizer.from_pretrained(spec.output).eos_token_id == 1
    names = {path.name for path in spec.output.iterdir()}
    assert "model.safetensors" in names
    assert not names & {"old", "training_args.bin"}
    assert {path.name for path in spec.output.parent.iterdir()} == {"checkpoint", "work"}
    assert not list(spec.work.glob("checkpoint-*"))
    assert log_of(spec) == steps == read_log(spec.log)


def test_a_finished_training_is_not_repeated_and_a_changed_one_is(tmp_path: Path) -> None:
    spec = make_spec(tmp_path, max_steps=2)
    assert len(run(spec)) == 2
    assert run(spec) == []
    assert len(run(replace(spec, fingerprint="other"))) == 2
    assert (result_of(spec)["fingerprint"], len(log_of(spec))) == ("other", 2)


def test_liger_replaces_no_loss(tmp_path: Path) -> None:
    plain, liger = (training_arguments(make_spec(tmp_path, liger=given), steps=3) for given in (False, True))
    assert liger.use_liger_kernel and not plain.use_liger_kernel
    assert liger.liger_kernel_config == {"cross_entropy": False, "fused_linear_cross_entropy": False}


@pytest.mark.parametrize(
    ("changes", "most"),
    [({"batch_size": 1, "epochs": 1.0, "learning_rate": 1e-6}, 2), ({"batch_size": 1, **PACKED}, 5)],
)
def test_a_loss_that_is_no_number_names_the_samples_of_its_batch(
    tmp_path: Path, changes: dict[str, Any], most: int
) -> None:
    spec = poisoned(make_spec(tmp_path, **changes))
    with refused("training.diverged", "loss is nan.*batch's.*sample-7") as caught:
        run(spec)
    named = str(caught.value).split("samples: ")[1].split(". ")[0].split(", ")
    assert len(named) <= most and not spec.output.exists()
    if "batching" in changes:
        assert len(named) > 1, "those of its packed row"
    else:
        assert [step["step"] for step in read_log(spec.log)] == [1, 2, 3]


def test_a_gradient_that_is_no_number_names_the_samples_of_its_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from gateau_dagster.training.trainer import ResponseTrainer

    spec = make_spec(tmp_path, batch_size=1, gradient_accumulation=2)
    monkeypatch.setattr(ResponseTrainer, "_get_grad_norm", lambda *_, **__: torch.tensor(math.inf))
    with refused("training.diverged", "gradient's.*1.*batch's.*sample-0.*sample-1"):
        run(spec)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"mix": "nowhere.parquet"}, "nowhere.parquet cannot be read"),
        ({"mix": "empty.parquet"}, "is empty"),
        ({"base_model": "nowhere"}, "the model folder .*nowhere does not exist"),
        ({"training": {"processes": 2}}, "processes is 2, but 1 rank"),
        ({"training": {"dtype": "float16"}}, "float16 needs a GPU"),
    ],
)
def test_what_cannot_be_used_is_named(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    spec = make_spec(tmp_path, **change.get("training", {}))
    pl.DataFrame(schema=schema(TRAINING_MIX)).write_parquet(tmp_path / "empty.parquet")
    mix, base = tmp_path / change.get("mix", "mix.parquet"), str(tmp_path / change.get("base_model", "base"))
    with pytest.raises(GateauError, match=message):
        run(replace(spec, mix=mix, base_model=base))
    assert not spec.output.exists()


NEVER = {"strategy": "all", "length": 500, "probability": 0.0}


def test_documents_that_change_one_another_s_frequencies_are_refused_by_the_training_too(tmp_path: Path) -> None:
    spec = make_spec(tmp_path, batching="packed", pack_length=512, max_length=512)
    path = Path(spec.base_model) / "config.json"
    scaled = {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}}
    path.write_text(json.dumps(json.loads(path.read_text()) | scaled | {"max_position_embeddings": 256}))
    with refused("training.architecture", r"LlamaForCausalLM .* beyond 256 positions the longest document of a row"):
        run(spec)


def test_weights_of_tokens_stay_float32_under_deepspeed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = make_spec(tmp_path, loss="longce", dtype="bfloat16")
    mix = read_mix(spec.mix, weighted=True)
    rows, arguments = MixRows(mix, plan_of(spec, mix)), training_arguments(spec, steps=1, cpu=True)
    trainer = make_trainer(spec, *load_base(spec, longest=rows.farthest), arguments, rows)
    half = SimpleNamespace(hf_ds_config=SimpleNamespace(dtype=lambda: torch.bfloat16))
    monkeypatch.setattr(trainer, "is_deepspeed_enabled", True)
    monkeypatch.setattr(trainer, "accelerator", SimpleNamespace(state=SimpleNamespace(deepspeed_plugin=half)))
    batch = PadRight(pad_token_id=0, weighted=True)([rows[0]])
    found = trainer._prepare_inputs(batch)
    assert found["weights"].dtype == torch.float32
    assert torch.equal(found["weights"], batch["weights"]) and not torch.equal(
        batch["weights"], batch["weights"].bfloat16()
    )
    assert torch.equal(found["labels"], batch["labels"])


@pytest.mark.parametrize(
    "batching", ["padded", *(pytest.param(other, marks=pytest.mark.long) for other in ("sorted", "packed"))]
)
def test_skips_of_probability_0_are_plain_training_to_the_bit(tmp_path: Path, batching: str) -> None:
    plain = make_spec(tmp_path, name="plain", batching=batching, max_steps=6)
    never = make_spec(tmp_path, name="never", batching=batching, max_steps=6, skip=NEVER)
    steps = [[(step["loss"], step["grad_norm"]) for step in run(spec)] for spec in (plain, never)]
    assert len(steps[0]) == 6 and steps[0] == steps[1] and weights_differ(plain, never) == 0
    assert (plain.output / "config.json").read_bytes() == (never.output / "config.json").read_bytes()


@pytest.mark.parametrize(("template", "ends"), [("chat", [4, 1]), ("gateau", 1)])
def test_a_checkpoint_stops_where_its_answers_end(tmp_path: Path, template: Template, ends: list[int] | int) -> None:
    spec = replace(make_spec(tmp_path, max_steps=1), template=template)
    run(spec)
    assert AutoModelForCausalLM.from_pretrained(spec.output).generation_config.eos_token_id == ends
    assert json.loads((spec.output / "config.json").read_text())["eos_token_id"] == ends
    assert AutoTokenizer.from_pretrained(spec.output).eos_token == ("<|end|>" if template == "chat" else "</s>")


def test_an_eos_that_a_template_prints_elsewhere_stays(tmp_path: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(save_model(tmp_path))
    tokens = AutoTokenizer.from_pretrained(tmp_path)
    tokens.chat_template = "{{ eos_token }}" + CHAT_TEMPLATE
    for _ in range(2):
        set_ends(model, tokens, "chat")
        assert (model.generation_config.eos_token_id, model.config.eos_token_id) == ([4, 1], [4, 1])
        assert tokens.eos_token == "</s>"


# What a rank does last before it loses the lease, and the number of that call.
LAST_DEEDS = {
    "a checkpoint": ("gateau_dagster.training.checkpoints.mark_complete", 1),
    "the log": ("gateau_dagster.training.metrics.StepLog.record", 1),
    "an incomplete checkpoint": ("transformers.Trainer._save_checkpoint", 1),
    "the last checkpoint": ("gateau_dagster.training.checkpoints.mark_complete", 2),
    "the model's temporary folder": ("gateau_dagster.training.model.flush_folder", 1),
}


@pytest.mark.parametrize("deed", [*LAST_DEEDS])
def test_a_rank_writes_nothing_after_the_store_is_taken_over(
    deed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fence, "_SECONDS_BETWEEN_LOOKS", 0.0)
    spec, files = make_spec(tmp_path, max_steps=2, save_steps=1), Files(str(tmp_path / "store"))
    token = Token(root=files.root, number=1, lease="ours")
    files.create(token.name, b'{"lease": "ours"}')
    place, times = LAST_DEEDS[deed]
    original, on_disk_then = pkgutil.resolve_name(place), list[dict[str, bytes]]()

    def on_disk() -> dict[str, bytes]:
        return {str(file): file.read_bytes() for file in spec.work.parent.rglob("*") if file.is_file()}

    def then_lost(*arguments: Any, **options: Any) -> None:
        original(*arguments, **options)
        on_disk_then.append(on_disk())
        if len(on_disk_then) == times:
            files.remove(token.name)

    monkeypatch.setattr(place, then_lost)
    with holding(token, alone=True), pytest.raises(LeaseLostError, match="has taken over"):
        run(spec)
    assert on_disk().items() <= on_disk_then[times - 1].items()
    assert not spec.output.exists()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"report_to": ["mlflow"]}, r"training.report_to: mlflow is not installed. Run `pip install mlflow`"),
        ({"liger": True}, r"training.liger: the package liger-kernel is not installed"),
        ({"lora": {}}, r"training.lora: the package peft is not installed"),
    ],
)
def test_missing_packages(given: dict[str, Any], message: str) -> None:
    training = TrainingConfig.model_validate(given)
    with refused("training.package", message):
        check_packages(training, installed=lambda package: False)
    check_packages(training, installed=lambda package: True)
    with refused("training.conflict", "only W&B and MLflow keep data"):
        check_packages(TrainingConfig(report_to=["tensorboard"], report_data=True), installed=lambda _: True)
    either = TrainingConfig(report_to=["tensorboard"])
    check_packages(either, installed=lambda package: package == "tensorboardX")


def test_a_gpu_and_all_ranks_are_asked_for() -> None:
    for given, message in (({"liger": True}, "kernels need a GPU"), ({"dtype": "float16"}, "float16 needs a GPU")):
        training = TrainingConfig.model_validate(given)
        with refused("training.no_gpu", message):
            check_device(training, cuda=False)
        check_device(training, cuda=True)
    check_ranks(TrainingConfig(processes=2), ranks=2)
    with refused("training.processes", "2.*1"):
        check_ranks(TrainingConfig(processes=2), ranks=1)


def test_the_cpu_is_taken_where_it_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    spec = make_spec(tmp_path)
    asked = training_arguments(spec, steps=3, cpu=True)
    assert (asked.use_cpu, asked.device.type, asked.dataloader_pin_memory) == (True, "cpu", False)
    with refused("training.no_gpu", "float16.*GPU"):
        train(make_spec(tmp_path, dtype="float16"), lambda metrics: None, cpu=True)


def test_curves_in_tensorboard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    monkeypatch.chdir(tmp_path)
    spec = make_spec(tmp_path, max_steps=3, report_to=["tensorboard"])
    steps = run(spec)
    [events] = tmp_path.rglob("events.out.tfevents.*")
    found = accumulator.EventAccumulator(os.fspath(events.parent)).Reload()
    assert [event.value for event in found.Scalars("train/loss")] == pytest.approx([step["loss"] for step in steps])
    assert [event.step for event in found.Scalars("train/learning_rate")] == [1, 2, 3]
    assert events.is_relative_to(spec.work)


def test_positions_run_on_over_a_concatenated_row(tmp_path: Path) -> None:
    spec = make_spec(tmp_path, **ROWS | {"batching": "concatenated", "max_steps": 1})
    run(spec)
    lengths = read_mix(spec.mix)["input_ids"].list.len().to_list()
    longest = max(sum(lengths[each.row] for each in row) for row in plan_of(spec, read_mix(spec.mix)).rows)
    assert AutoModelForCausalLM.from_pretrained(spec.output).config.max_position_embeddings == longest > 64


def test_a_row_costs_the_square_of_all_its_tokens() -> None:
    lengths = [3, 4, 9, 2, 8, 1]  # the rows have 3 + 4 + 2 + 1, 9 and 8 tokens
    settings: dict[str, Any] = {"epochs": 1.0, "max_steps": None, "pack_length": 10, "balanced": True, "seed": 0}
    settings |= {"rows_per_batch": 1, "accumulation": 2, "processes": 1}
    packed, plan = (plan_batches(lengths, batching=batching, **settings) for batching in ("packed", "concatenated"))
    tokens = [[sum(lengths[each.row] for each in row) for row in found.rows] for found in (packed, plan)]
    assert tokens == [[9, 10, 8, 0], [10, 9, 8, 0]], "the dearest row of a step comes first"
    assert packed.costs(lengths).tolist() == [81, 9 + 16 + 4 + 1, 64, 0]
    assert plan.costs(lengths).tolist() == [100, 81, 64, 0]
    settings |= {"accumulation": 1, "processes": 2}
    two = plan_batches(lengths, batching="concatenated", **settings)
    figures = plan_statistics(two, lengths, pack_length=10)
    assert figures.imbalance == pytest.approx((100 + 64) / (90.5 + 32))
    assert (figures.fill_rate, figures.documents) == (pytest.approx(27 / 30), 6)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"preset": "skipalign"}, "skip: spreads the positions of one conversation.* or skip: null"),
        ({"sequences_per_step": 4}, "give tokens_per_step instead"),
        ({"tokens_per_step": 100, "pack_length": 64}, "batch_size x processes x pack_length"),
        ({"pack_length": 32}, "32 is below max_length"),
    ],
)
def test_what_does_not_go_with_it_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        TrainingConfig.model_validate({"batching": "concatenated", "max_length": 64} | changes)


def test_concatenated_rows_are_the_baseline_of_skipalign_and_may_be_shared_by_processes() -> None:
    baseline = {"preset": "skipalign", "batching": "concatenated", "pack_length": 16_384, "skip": None}
    training = TrainingConfig.model_validate(baseline)
    assert (training.max_length, training.row_tokens, training.learning_rate) == (4_096, 16_384, 1e-5)
    shared = {"batching": "concatenated", "processes": 4, "sequence_parallel": 2, "deepspeed": "zero3"}
    assert TrainingConfig.model_validate(shared | {"tokens_per_step": 2**20}).passes_per_step == 8
