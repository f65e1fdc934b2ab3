"""A training against a slow loop: losses, gradients, weights, what it writes and what it refuses."""

import json
import math
import pkgutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from gateau_dagster.config.models import Template
from gateau_dagster.errors import GateauError
from gateau_dagster.storage import fence
from gateau_dagster.storage.fence import LeaseLostError, Token, holding
from gateau_dagster.storage.files import Files
from gateau_dagster.tables import TRAINING_MIX, schema
from gateau_dagster.training.batching import epoch_order
from gateau_dagster.training.encode import IGNORED
from gateau_dagster.training.metrics import read_log
from gateau_dagster.training.model import set_ends
from gateau_dagster.training.spec import TrainingSpec
from gateau_dagster.training.train import train, training_arguments
from tests.error_codes import refused
from tests.training.builders import CHAT_TEMPLATE, make_spec, save_model


def run(spec: TrainingSpec) -> list[dict[str, Any]]:
    """The steps that were reported."""
    steps: list[dict[str, Any]] = []
    train(spec, steps.append)
    return steps


def slow_training(spec: TrainingSpec) -> tuple[list[float], list[float], dict[str, torch.Tensor]]:
    """Losses, gradient norms and final weights: one sequence at a time, no padding, plain PyTorch."""
    training = spec.training
    mix = pl.read_parquet(spec.mix)
    count = mix.height
    rows = [row for epoch in range(9) for row in epoch_order(count, epoch=epoch, seed=training.seed)]
    rows = rows[: round(count * training.epochs)]
    step = training.batch_size * training.gradient_accumulation * training.processes
    batches = [rows[start : start + step] for start in range(0, len(rows), step)]
    model = AutoModelForCausalLM.from_pretrained(spec.base_model, dtype=torch.float32)
    optimiser = torch.optim.AdamW(model.parameters(), lr=0.0, betas=training.adam_betas, eps=1e-8, weight_decay=0.0)
    warmup = math.ceil(training.warmup_ratio * len(batches))
    losses, norms = [], []
    for number, batch in enumerate(batches):
        rising, falling = number / max(1, warmup), (len(batches) - number) / (len(batches) - warmup)
        optimiser.param_groups[0]["lr"] = training.learning_rate * (rising if number < warmup else falling)
        total, tokens = torch.zeros(()), 0
        for row in batch:
            ids, labels = (torch.tensor(mix[name][row].to_list()) for name in ("input_ids", "labels"))
            log_probabilities = torch.log_softmax(model(ids[None]).logits[0], -1)
            for position in range(1, len(ids)):
                if labels[position] != IGNORED:
                    total = total - log_probabilities[position - 1, ids[position]]
                    tokens += 1
        (total / tokens).backward()
        losses.append(float(total.detach()) / tokens)
        norms.append(float(torch.nn.utils.clip_grad_norm_(model.parameters(), training.max_grad_norm)))
        optimiser.step()
        optimiser.zero_grad()
    return losses, norms, {name: value.detach() for name, value in model.state_dict().items()}


def test_losses_gradients_and_weights_equal_the_slow_loop(tmp_path: Path) -> None:
    spec = make_spec(tmp_path, epochs=3.5, gradient_accumulation=2, batch_size=2)
    losses, norms, weights = slow_training(spec)
    steps = run(spec)
    assert len(steps) == len(losses) == 10
    assert [step["loss"] for step in steps] == pytest.approx(losses, abs=1e-5, rel=0)
    assert [step["grad_norm"] for step in steps] == pytest.approx(norms, rel=1e-4)
    assert losses[-1] < losses[0]
    assert (steps[-1]["step"], steps[-1]["total"], steps[-1]["seconds_left"]) == (10, 10, 0)
    trained = load_file(spec.output / "model.safetensors")
    for name, value in trained.items():
        torch.testing.assert_close(value, weights[name], atol=2e-5, rtol=0)


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
    assert json.loads((spec.output / "training_log.json").read_text())["steps"] == steps == read_log(spec.log)


def test_the_window_grows_to_what_was_trained(tmp_path: Path) -> None:
    spec = make_spec(tmp_path, max_steps=1)
    row = {"position": 0, "sample_id": "a", "origin": "long", "input_ids": [7] * 80, "labels": [7] * 80}
    pl.DataFrame([row | {"truncated_tokens": 0}], schema=schema(TRAINING_MIX)).write_parquet(spec.mix)
    run(spec)
    assert AutoModelForCausalLM.from_pretrained(spec.output).config.max_position_embeddings == 80


def test_a_finished_training_is_not_repeated_and_a_changed_one_is(tmp_path: Path) -> None:
    spec = make_spec(tmp_path, max_steps=2)
    assert len(run(spec)) == 2
    assert run(spec) == []
    assert len(run(replace(spec, fingerprint="other"))) == 2
    log = json.loads((spec.output / "training_log.json").read_text())
    assert (log["fingerprint"], len(log["steps"])) == ("other", 2)


def test_gradient_checkpointing_changes_no_loss(tmp_path: Path) -> None:
    plain = run(make_spec(tmp_path, name="plain", max_steps=3))
    saved = run(make_spec(tmp_path, name="saved", max_steps=3, gradient_checkpointing=True))
    assert [step["loss"] for step in saved] == pytest.approx([step["loss"] for step in plain], abs=1e-6)


@pytest.mark.parametrize("scheduler", ["linear", "cosine", "constant"])
def test_settings_reach_the_trainer(tmp_path: Path, scheduler: str) -> None:
    spec = make_spec(tmp_path, scheduler=scheduler, adam_betas=(0.8, 0.85), weight_decay=0.3, warmup_ratio=0.15)
    arguments = training_arguments(spec, steps=20)
    # transformers' `constant` knows no warm-up
    assert arguments.lr_scheduler_type == ("constant_with_warmup" if scheduler == "constant" else scheduler)
    assert (arguments.adam_beta1, arguments.adam_beta2, arguments.weight_decay) == (0.8, 0.85, 0.3)
    assert (arguments.max_steps, arguments.get_warmup_steps(20), arguments.seed) == (20, 3, 42)


def test_a_loss_that_is_no_number_names_the_samples_of_its_batch(tmp_path: Path) -> None:
    spec = make_spec(tmp_path, batch_size=1, gradient_accumulation=2, epochs=1.0, learning_rate=1e-6)
    weights = load_file(Path(spec.base_model) / "model.safetensors")
    weights["model.embed_tokens.weight"][299] = math.nan
    save_file(weights, Path(spec.base_model) / "model.safetensors", metadata={"format": "pt"})
    mix = pl.read_parquet(spec.mix)
    ids = mix["input_ids"].to_list()
    ids = [[5 if token == 299 else token for token in row] for row in ids]
    ids[7][2] = 299
    mix.with_columns(pl.Series("input_ids", ids, dtype=pl.List(pl.Int32()))).write_parquet(spec.mix)
    with refused("training.diverged", "4.*batch's.*sample-7"):
        run(spec)
    assert not spec.output.exists()
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
        ({"mix": Path("nowhere.parquet")}, "nowhere.parquet cannot be read"),
        ({"base_model": "./nowhere"}, "no model folder"),
        ({"training": {"processes": 2}}, "processes is 2, but 1 rank"),
        ({"training": {"dtype": "float16"}}, "float16 needs a GPU"),
    ],
)
def test_what_cannot_be_used_is_named(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    if torch.cuda.is_available() and "float16" in message:
        pytest.skip("there is a GPU")
    spec = make_spec(tmp_path, **change.pop("training", {}))
    with pytest.raises(GateauError, match=message):
        run(replace(spec, **change))
    assert not spec.output.exists()


def test_an_empty_mix_is_named(tmp_path: Path) -> None:
    spec = make_spec(tmp_path)
    pl.DataFrame(schema=schema(TRAINING_MIX)).write_parquet(spec.mix)
    with refused("training.empty_mix"):
        run(spec)


NEVER = {"strategy": "all", "length": 500, "probability": 0.0}


@pytest.mark.parametrize(
    "batching", ["padded", *(pytest.param(other, marks=pytest.mark.long) for other in ("sorted", "packed"))]
)
def test_skips_of_probability_0_are_plain_training_to_the_bit(tmp_path: Path, batching: str) -> None:
    plain = make_spec(tmp_path, name="plain", batching=batching, max_steps=6)
    never = make_spec(tmp_path, name="never", batching=batching, max_steps=6, skip=NEVER)
    for spec in (plain, never):
        train(spec, lambda metrics: None)
    assert losses(plain) == losses(never)
    wanted, found = (load_file(spec.output / "model.safetensors") for spec in (plain, never))
    assert wanted.keys() == found.keys()
    for name, value in wanted.items():
        assert torch.equal(value, found[name]), name
    assert (plain.output / "config.json").read_bytes() == (never.output / "config.json").read_bytes()


def losses(spec: TrainingSpec) -> list[tuple[float, float]]:
    found = [(step["loss"], step["grad_norm"]) for step in read_log(spec.log)]
    assert len(found) == 6
    return found


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
