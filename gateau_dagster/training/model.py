"""The model that is trained: loaded with its changes, and written as a complete Hugging Face folder or not at all."""

import json
import shutil
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from gateau_dagster.config import ModelConfig
from gateau_dagster.scoring.loading import load_model
from gateau_dagster.training.metrics import read_log
from gateau_dagster.training.spec import TrainingSpec
from gateau_dagster.training.trainer import SAVE_ERRORS, ResponseTrainer, barrier, save_failure

LOG_NAME = "training_log.json"


def load_base(spec: TrainingSpec, *, longest: int) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """The base model in float32 (its master weights) on the CPU, and its tokenizer.

    `rope_theta` replaces the base of the rotary embedding. Where a plain rotary embedding is trained beyond the
    declared window, the window grows to `longest` tokens; a scaled one keeps it, for its frequencies depend on it.

    Raises:
        GateauError: as `load_model`.
    """
    section = ModelConfig(
        path=spec.base_model,
        revision=spec.revision,
        rope_theta=spec.rope_theta,
        trust_remote_code=spec.trust_remote_code,
    )
    loaded = load_model(section, dtype="float32", device="cpu", folder=Path())
    model = loaded.model.train().requires_grad_(True)
    config: Any = model.config.get_text_config(decoder=True)
    rope = getattr(config, "rope_parameters", None)
    plain = isinstance(rope, dict) and rope.get("rope_type") == "default"
    if plain and longest > getattr(config, "max_position_embeddings", longest):
        config.max_position_embeddings = longest
    config.use_cache = False
    return model, loaded.tokenizer


def write_output(trainer: ResponseTrainer, tokenizer: PreTrainedTokenizerBase, spec: TrainingSpec) -> None:
    """Consolidated safetensors, config, tokenizer and `training_log.json` in `spec.output`: complete or absent.

    Call on every rank: under ZeRO-3 the weights are gathered from all of them; rank 0 writes. Weights are stored in
    `training.dtype`.

    Raises:
        GateauError: the folder cannot be written.
    """
    state: Any = trainer.accelerator.get_state_dict(trainer.deepspeed) if trainer.is_deepspeed_enabled else None
    if trainer.args.process_index == 0:
        model = trainer.model
        assert isinstance(model, PreTrainedModel)
        if state is None:
            model.to(dtype=getattr(torch, spec.training.dtype))  # pyright: ignore[reportCallIssue]
        model.config.get_text_config(decoder=True).use_cache = True
        temporary = spec.output.with_name(f".{spec.output.name}.tmp")
        try:
            shutil.rmtree(temporary, ignore_errors=True)
            model.save_pretrained(temporary, state_dict=state)
            tokenizer.save_pretrained(temporary)
            _write_log(temporary / LOG_NAME, spec)
            _replace(temporary, spec.output)
        except SAVE_ERRORS as error:
            shutil.rmtree(temporary, ignore_errors=True)
            raise save_failure("the trained model", spec.output, error) from error
    barrier()


def _write_log(path: Path, spec: TrainingSpec) -> None:
    log = {
        "fingerprint": spec.fingerprint,
        "resume_key": spec.resume_key,
        "training": spec.training.model_dump(mode="json"),
        "deepspeed": spec.deepspeed,
        "steps": read_log(spec.log),
    }
    path.write_text(json.dumps(log, indent=1), encoding="utf-8")


def _replace(temporary: Path, output: Path) -> None:
    """A folder cannot be replaced in one call: the old one steps aside first, and is removed last."""
    old = output.with_name(f".{output.name}.old")
    shutil.rmtree(old, ignore_errors=True)
    if output.exists():
        output.replace(old)
    temporary.replace(output)
    shutil.rmtree(old, ignore_errors=True)


def is_finished(spec: TrainingSpec) -> bool:
    """Whether the output folder already holds this very training's result."""
    path = spec.output / LOG_NAME
    return path.exists() and json.loads(path.read_text(encoding="utf-8"))["resume_key"] == spec.resume_key
