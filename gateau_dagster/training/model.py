"""Load the model to train, add low-rank adapters (LoRA, Hu et al. 2021), and write it as a folder with a model card."""

# Why master weights are in float32: an update is often smaller than the distance of two bfloat16 numbers, and would be
# rounded away.
#
# Why the result is a plain folder, in `training.dtype` and with merged adapters: whoever loads it needs neither
# DeepSpeed nor peft, and transformers, servers and the evaluation read it alike. The price is a full copy of the model
# for each variant. Where many adapters share one base model, separate adapters would save disk and memory.

import html
import json
import shutil
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import yaml
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from gateau_dagster.config import ModelConfig
from gateau_dagster.config.models import Template
from gateau_dagster.config.training import LoraConfig
from gateau_dagster.errors import GateauError
from gateau_dagster.models.chat_rendering import render_chat
from gateau_dagster.models.loading import load_model
from gateau_dagster.models.prompt import answer_ends
from gateau_dagster.models.shapes import model_without_weights
from gateau_dagster.storage.documents import RECORD_NAME, record_bytes
from gateau_dagster.storage.files import prove_leases
from gateau_dagster.storage.local import fill_with, flush_folder, replace_local
from gateau_dagster.training.batch_plan import BatchPlan, write_plan
from gateau_dagster.training.checkpoints import saving
from gateau_dagster.training.dataset import MixRows
from gateau_dagster.training.launch import TrainingSpec
from gateau_dagster.training.metrics import Metrics, read_log
from gateau_dagster.training.position_extension import extend_positions
from gateau_dagster.training.trainer import ResponseTrainer, barrier
from gateau_dagster.training.used_settings import SETTINGS_NAME

if TYPE_CHECKING:
    from peft import PeftModel


CARD_NAME = "README.md"
# Settings that are not part of the recipe, or are listed in another form.
_ELSEWHERE = {"enabled", "model", "deepspeed", "launcher", "hostfile", "gradient_accumulation", "gpu_memory"}
_PACKAGES = ("gateau-dagster", "torch", "transformers", "accelerate", "deepspeed", "peft")


def model_card(
    spec: TrainingSpec, plan: BatchPlan, steps: Sequence[Metrics], used: Mapping[str, Any] | None = None
) -> str:
    """Return the model card: Markdown with the front matter that the Hugging Face hub reads.

    Args:
        spec: the specification of the training run.
        plan: the batches of the run.
        steps: the logged steps of the run.
        used: the `model` section of `used_settings`. Its memory levers replace those that the settings leave to `auto`.
    """
    front = {
        "base_model": None if Path(spec.base_model).is_absolute() else spec.base_model,
        "library_name": "transformers",
        "pipeline_tag": "text-generation",
        "tags": ["gateau-dagster", "long-context"],
    }
    base = Path(spec.base_model).name
    origin = base if Path(spec.base_model).is_absolute() else spec.base_model
    if spec.revision is not None:
        origin += f", revision {spec.revision}"
    levers = {"offload_activations": "on"} if used and used.get("offloaded_activations") else {}
    if used and used.get("mlp_tile_tokens") is not None:
        levers["tiled_mlp"] = str(used["mlp_tile_tokens"])
    matter = yaml.safe_dump({key: value for key, value in front.items() if value is not None}, sort_keys=False)
    sections = [
        f"---\n{matter}---\n\n# {_plain(base)}, trained for long contexts",
        _section(
            "Data",
            {"Base model": origin, **spec.provenance},
        ),
        _section("Outcome", _outcome(plan, steps)),
        _section("Recipe", _recipe(spec) | levers),
        _section("Versions", _versions()),
    ]
    return "\n\n".join(sections) + "\n"


def _outcome(plan: BatchPlan, steps: Sequence[Metrics]) -> dict[str, str]:
    documents = sum(len(row) for row in plan.rows)
    found = {"Optimiser steps": f"{plan.steps:,}", "Sequences, all epochs": f"{documents:,}"}
    if steps:
        found |= {
            "Tokens, all epochs": f"{steps[-1]['tokens']:,}",
            "Loss, first and last step": f"{steps[0]['loss']:.4f}, {steps[-1]['loss']:.4f}",
        }
    return found


def _recipe(spec: TrainingSpec) -> dict[str, str]:
    """Return every setting of `training` that is not off, and the DeepSpeed stage."""
    training = spec.training
    settings = training.model_dump(mode="json", exclude=_ELSEWHERE)
    found = {"Template": spec.template, "Passes per step": str(training.passes_per_step)}
    if spec.rope_theta is not None:
        found["rope_theta"] = f"{spec.rope_theta:g}"
    for name, value in settings.items():
        if value is not None and value is not False and value not in ([], {}):  # a rate or a seed of 0 is a setting
            found[name] = _shown(value)
    if spec.deepspeed is not None:
        found["deepspeed, zero_optimization"] = _shown(spec.deepspeed["zero_optimization"])
    return found


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _versions() -> dict[str, str]:
    found = {}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue  # peft is installed for LoRA only
    return found


def _section(title: str, lines: Mapping[str, str]) -> str:
    rows = [f"| {_plain(name)} | {_plain(text)} |" for name, text in lines.items()]
    return "\n".join([f"## {title}", "", "| | |", "|---|---|", *rows])


def _plain(text: str) -> str:
    """Escape text for Markdown: names and settings add no HTML, links, table cells or new lines."""
    marks = {"|": "&#124;", "`": "&#96;", "](": "]&#40;", "*": "&#42;"}
    shown = html.escape(" ".join(text.split()), quote=False)
    for mark, written in marks.items():
        shown = shown.replace(mark, written)
    return shown


@dataclass(frozen=True, kw_only=True)
class PlanStatistics:
    """Statistics of a plan.

    rows: the number of rows that hold a document. empty_rows: the number of rows that only complete a pass. documents,
    tokens: counts over all epochs. fill_rate: tokens / (rows * pack_length), for rows of several documents.
    padding_share: the share of padding in batches that are padded to their longest row; empty rows count as padding.
    imbalance: the time of all passes relative to equal costs of all ranks, see `imbalance`. documents_per_step: the
    minimum, mean and maximum.
    """

    steps: int
    rows: int
    empty_rows: int
    documents: int
    tokens: int
    fill_rate: float | None
    padding_share: float
    imbalance: float
    documents_per_step: tuple[int, float, int]


def plan_statistics(plan: BatchPlan, lengths: Sequence[int], *, pack_length: int | None = None) -> PlanStatistics:
    """Return the statistics of `plan` over documents of these lengths.

    Args:
        plan: the batches.
        lengths: the tokens of each document of the mix.
        pack_length: the tokens of a row of several documents; None if each row holds one document.
    """
    rows = [[document.row for document in row] for row in plan.rows]
    tokens = np.array([sum(lengths[document] for document in row) for row in rows], dtype=np.int64)
    held = np.array([len(row) for row in rows], dtype=np.int64)
    filled = int((held > 0).sum())
    longest = tokens.reshape(-1, plan.rows_per_batch).max(axis=1)
    padded = int(longest.sum()) * plan.rows_per_batch
    each_step = held.reshape(plan.steps, -1).sum(axis=1)
    return PlanStatistics(
        steps=plan.steps,
        rows=filled,
        empty_rows=len(rows) - filled,
        documents=int(held.sum()),
        tokens=int(tokens.sum()),
        fill_rate=None if pack_length is None else int(tokens.sum()) / (filled * pack_length),
        padding_share=1 - int(tokens.sum()) / padded,
        imbalance=imbalance(plan.costs(lengths), processes=plan.processes, rows_per_batch=plan.rows_per_batch),
        documents_per_step=(int(each_step.min()), float(each_step.mean()), int(each_step.max())),
    )


def imbalance(costs: np.ndarray, *, processes: int, rows_per_batch: int) -> float:
    """Return the time of the passes relative to equal costs of all ranks.

    It is the sum of the maxima over ranks divided by the sum of the means; at best 1.

    Args:
        costs: int64 [passes * processes * rows_per_batch], the cost of each row in the plan's order.
        processes: the number of ranks.
        rows_per_batch: the number of rows in a micro batch.
    """
    ranks = costs.reshape(-1, processes, rows_per_batch).sum(axis=2, dtype=np.float64)
    return float(ranks.max(axis=1).sum() / ranks.mean(axis=1).sum())


PLAN_NAME = "batch_plan.parquet"


def load_base(spec: TrainingSpec, *, longest: int) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Load the base model on the CPU, in float32 for its master weights, and its tokenizer.

    `rope_theta` replaces the base of the rotary embedding, and `training.positions` extends the embedding. If an
    unscaled embedding is trained beyond the declared window, the window grows to `longest` tokens. A scaled embedding
    keeps its window, because its frequencies depend on it.

    Raises:
        GateauError: `load_model` or `extend_positions` refuses the model.
    """
    section = ModelConfig(
        path=spec.base_model,
        revision=spec.revision,
        rope_theta=spec.rope_theta,
        trust_remote_code=spec.trust_remote_code,
    )
    positions = spec.training.positions
    extend = None if positions is None else partial(extend_positions, section=positions, name=spec.base_model)
    loaded = load_model(section, dtype="float32", device="cpu", folder=Path(), adjust=extend)
    model = loaded.model.train().requires_grad_(True)
    config: Any = model.config.get_text_config(decoder=True)
    rope = getattr(config, "rope_parameters", None)
    plain = isinstance(rope, dict) and rope.get("rope_type") == "default"
    if plain and longest > getattr(config, "max_position_embeddings", longest):
        config.max_position_embeddings = longest
    config.use_cache = False
    return model, loaded.tokenizer


def write_output(
    trainer: ResponseTrainer, tokenizer: PreTrainedTokenizerBase, spec: TrainingSpec, plan: BatchPlan
) -> None:
    """Write consolidated safetensors, config, tokenizer, `training_log.json`, the batch plan and the model card.

    The folder `spec.output` is complete or absent. Weights are stored in `training.dtype`.

    Call this on every rank: under ZeRO-3 the weights are gathered from all ranks. Rank 0 writes.

    Raises:
        GateauError: the folder cannot be written.
    """
    state: Any = trainer.accelerator.get_state_dict(trainer.deepspeed) if trainer.is_deepspeed_enabled else None
    if trainer.args.process_index == 0:
        model, state = _as_stored(trainer, state, spec)
        temporary = spec.output.with_name(f".{spec.output.name}.tmp")
        prove_leases()
        shutil.rmtree(temporary, ignore_errors=True)
        with saving("the trained model", spec.output, torn=temporary):
            set_ends(model, tokenizer, spec.template)
            model.save_pretrained(temporary, state_dict=state)
            tokenizer.save_pretrained(temporary)
            settings = json.loads((spec.work / SETTINGS_NAME).read_text(encoding="utf-8"))
            steps, training, rows = read_log(spec.log), spec.training, trainer.train_dataset
            assert isinstance(rows, MixRows)
            batches = plan_statistics(plan, rows.lengths, pack_length=training.row_tokens if training.packs else None)
            log = {
                "fingerprint": spec.fingerprint,
                "resume_key": spec.resume_key,
                "training": training.model_dump(mode="json"),
                "deepspeed": spec.deepspeed,
                "batches": asdict(batches),
                "settings": settings,
                "steps": steps,
            }
            replace_local(temporary / RECORD_NAME, partial(fill_with, data=record_bytes(log)))
            write_plan(plan, temporary / PLAN_NAME)
            (temporary / CARD_NAME).write_text(model_card(spec, plan, steps, settings["model"]), encoding="utf-8")
            flush_folder(temporary)  # before the checkpoints are removed
            prove_leases()
            _replace(temporary, spec.output)
    barrier()


def _as_stored(trainer: ResponseTrainer, state: Any, spec: TrainingSpec) -> tuple[PreTrainedModel, Any]:
    """Return the model without adapters, in `training.dtype`, and its weights if DeepSpeed or adapters hold them."""
    model: Any = trainer.model
    dtype = getattr(torch, spec.training.dtype)
    if spec.training.lora is not None:
        state = {name: value.to(dtype) for name, value in merged_state(model, state).items()}
        model = adapted_base(model)
    assert isinstance(model, PreTrainedModel)
    if state is not None and getattr(model.config, "tie_word_embeddings", False):
        # ZeRO-2 also gathers a tied output layer; saving it twice would only make the file larger.
        state.pop("lm_head.weight", None)
    if not trainer.is_deepspeed_enabled:  # under DeepSpeed the model already has this type
        model.to(dtype=dtype)  # pyright: ignore[reportCallIssue]
    model.config.get_text_config(decoder=True).use_cache = True
    return model, state


def set_ends(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, template: Template) -> None:
    """Set the end tokens of a trained model, so that generation stops at the end of an answer.

    generation_config.json and config.json list the tokens that end an answer, before those that they already list. The
    first one becomes the tokenizer's eos. The tokenizer keeps its eos if the new one would change the output of its
    chat template.
    """
    ends: tuple[int, ...] = ()
    if template == "gateau" or tokenizer.chat_template:
        with suppress(Exception):  # a template may raise anything; an unusable one is refused earlier
            ends = answer_ends(tokenizer, template)
    if not ends:
        return
    for config in (model.generation_config, model.config):
        if config is not None:
            known = config.eos_token_id
            together = [*dict.fromkeys([*ends, *([known] if isinstance(known, int) else known or [])])]
            config.eos_token_id = together[0] if len(together) == 1 else together
    if tokenizer.eos_token_id not in ends:
        own, before = tokenizer.eos_token, _as_printed(tokenizer)
        tokenizer.eos_token = tokenizer.convert_ids_to_tokens(ends[0])
        if _as_printed(tokenizer) != before:
            tokenizer.eos_token = own


def _as_printed(tokenizer: PreTrainedTokenizerBase) -> str:
    turns = [{"role": role, "content": "?"} for role in ("user", "assistant", "user", "assistant")]
    return str(render_chat(tokenizer, turns, add_generation_prompt=False)) if tokenizer.chat_template else ""


def _replace(temporary: Path, output: Path) -> None:
    """Replace a folder. No single call can do this, so the old folder is renamed first and removed last."""
    old = output.with_name(f".{output.name}.old")
    shutil.rmtree(old, ignore_errors=True)
    if output.exists():
        output.replace(old)
    temporary.replace(output)
    shutil.rmtree(old, ignore_errors=True)


_NAME = "default"
_PREFIX = "base_model.model."
_ADAPTED = ".base_layer."


def with_adapters(model: PreTrainedModel, config: LoraConfig, *, seed: int) -> "PeftModel":
    """Return `model` with frozen weights and trainable adapters in float32.

    The adapters' output is zero at first, because B starts as zeros. `seed` decides the initial A, so that every
    attempt and every rank starts with the same weights.

    Raises:
        GateauError: peft finds no layer for the names in `config.modules`.
    """
    import peft

    settings = peft.LoraConfig(
        r=config.rank,
        lora_alpha=config.alpha,  # pyright: ignore[reportArgumentType]  # a float works, too
        lora_dropout=config.dropout,
        target_modules=config.modules,
        task_type="CAUSAL_LM",
    )
    torch.manual_seed(seed)
    try:
        with warnings.catch_warnings():
            # peft reads an attribute that transformers is renaming, which no user can change.
            warnings.filterwarnings("ignore", message="`is_gradient_checkpointing`", category=FutureWarning)
            adapted = peft.get_peft_model(model, settings, adapter_name=_NAME)
    except ValueError as error:
        raise GateauError(
            "training.lora",
            f"training.lora.modules: {config.modules} does not fit this model ({str(error).splitlines()[0]}). Name "
            "linear layers that it has, or write all-linear.",
        ) from error
    assert isinstance(adapted, peft.PeftModel)
    return adapted


def check_adapters(config: PreTrainedConfig, modules: Sequence[str]) -> None:
    """Check that each name in `training.lora.modules` belongs to layers that can have an adapter.

    A model whose architecture cannot be built without weights is not checked.

    Args:
        config: the configuration of the model.
        modules: names of layers, or the ends of their paths.

    Raises:
        GateauError: no layer has a name, or a layer with the name cannot have an adapter.
    """
    from transformers.pytorch_utils import Conv1D

    try:
        model, _ = model_without_weights(config)
    except GateauError:  # the training run reports the reason
        return
    layers, adaptable = dict(model.named_modules()), (nn.Linear, nn.Embedding, Conv1D, nn.Conv1d, nn.Conv2d, nn.Conv3d)
    linear = sorted(
        {name.rpartition(".")[2] for name, layer in layers.items() if isinstance(layer, (nn.Linear, Conv1D))}
    )
    for wanted in modules:
        meant = {name: layer for name, layer in layers.items() if name == wanted or name.endswith(f".{wanted}")}
        odd = next((name for name, layer in meant.items() if not isinstance(layer, adaptable)), None)
        if not meant or odd is not None:
            why = "no layer has this name" if odd is None else f"{odd} is a {type(layers[odd]).__name__}"
            raise GateauError(
                "training.lora",
                f"training.lora.modules: {wanted!a} does not fit this model ({why}). Name layers of "
                f"{', '.join(linear)}, or write all-linear.",
            )


def merged_state(model: "PeftModel", state: dict[str, Tensor] | None = None) -> dict[str, Tensor]:
    """Return the weights of the model without adapters.

    An adapted weight W becomes W + alpha / rank · B A (Hu et al. 2021, Eq. 3).

    Args:
        model: the result of `with_adapters`.
        state: the whole state of the model, if the model holds only a part (ZeRO-3); default: `model.state_dict()`.
    """
    # peft could merge by itself, but under ZeRO-3 a rank holds only a part of each weight. So the gathered state is
    # merged.
    whole = model.state_dict() if state is None else state
    modules: dict[str, Any] = dict(model.named_modules())
    merged: dict[str, Tensor] = {}
    for name, value in whole.items():
        if ".lora_" in name:
            continue
        layer, adapted, kind = name.partition(_ADAPTED)
        own = (f"{layer}.{kind}" if adapted else name).removeprefix(_PREFIX)
        merged[own] = value
        if adapted and kind == "weight":
            down, up = (whole[f"{layer}.lora_{side}.{_NAME}.weight"].float() for side in "AB")
            product = modules[layer].scaling[_NAME] * (up @ down)
            turned = getattr(modules[layer], "fan_in_fan_out", False)  # transformers' Conv1D
            merged[own] = value + (product.T if turned else product).to(value)
    return merged


def adapted_base(model: "PeftModel") -> PreTrainedModel:
    """Return the base model of `model`; its layers still hold the adapters."""
    base = model.get_base_model()
    assert isinstance(base, PreTrainedModel)
    return base
