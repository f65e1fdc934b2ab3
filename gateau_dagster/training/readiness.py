"""Check what a training run needs besides its data, and change a model so that it can be trained on the planned rows.

Most is checked before anything is loaded, and on a small random model of the architecture.
"""

# Why a small random model is tried: whether documents in a row stay apart depends on the code of an architecture, and
# on no weight. A list of model types would grow old with each release of transformers, and would say nothing about
# remote code. The trial takes at most 0.2 GB and no download of weights. It runs before anything is scored.
#
# What a trial on a few tokens cannot show: changes beyond a length, such as rotary embeddings that depend on it.
# `check_documents` reads these from the configuration.

from __future__ import annotations

import copy
import importlib.util
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from gateau_dagster.config.training import TrainingConfig
from gateau_dagster.errors import GateauError
from gateau_dagster.models.model_config import BY_LENGTH, Rope, full_attention_ropes
from gateau_dagster.readable import plural

if TYPE_CHECKING:
    from transformers import PreTrainedModel
    from transformers.configuration_utils import PreTrainedConfig


_ATTENTION = {"full_attention", "sliding_attention", "chunked_attention"}


def check_sharding(deepspeed: dict[str, Any] | None) -> None:
    """Raise GateauError if DeepSpeed would scale the gradient differently than `ResponseTrainer` compensates for."""
    zero = (deepspeed or {}).get("zero_optimization", {})
    if zero.get("stage", 0) == 0 or not zero.get("reduce_scatter", True):
        raise GateauError(
            "training.sequence_parallel",
            "training.sequence_parallel: needs DeepSpeed's ZeRO stage 1, 2 or 3 with reduce_scatter: true. "
            "Correct training.deepspeed.",
        )


def check_heads(model_config: PreTrainedConfig, size: int, *, name: str) -> None:
    """Check that `size` ranks can share a row: each holds some tokens and, in the attention, some heads.

    Raises:
        GateauError: the heads cannot be divided, or something other than attention depends on tokens of other ranks.
    """
    config: Any = model_config.get_text_config(decoder=True)
    heads, shared = (getattr(config, key, None) for key in ("num_attention_heads", "num_key_value_heads"))
    if not (isinstance(heads, int) and isinstance(shared, int)):
        raise _unsupported(
            model_config, name, "its configuration does not name num_attention_heads and num_key_value_heads"
        )
    if heads % size or (shared % size and size % shared):
        raise GateauError(
            "training.sequence_parallel",
            f"training.sequence_parallel: {heads} attention heads ({shared} of keys) cannot be divided among "
            f"{size} processes. Set a divisor of {heads} that also divides {shared}, or is a multiple of it.",
        )
    reason = _beyond_attention(config)
    if reason is not None:
        raise _unsupported(model_config, name, reason)


def _beyond_attention(config: Any) -> str | None:
    """Return the part of the model, apart from attention, that depends on tokens that a rank does not hold."""
    others = {*(getattr(config, "layer_types", None) or [])} - _ATTENTION
    if others:
        return f"it has {' and '.join(sorted(others))} layers, and only attention sees the tokens of all ranks"
    if _ropes_by_length(config):
        return "its rotary embedding depends on the length of a sequence, of which each rank holds a part"
    if _counts_places(config):
        return "its attention counts tokens from the begin of each part"
    return None


def _ropes_by_length(config: Any) -> list[Rope]:
    ropes = full_attention_ropes(getattr(config, "rope_parameters", None) or {})
    return [rope for rope in ropes if rope.get("rope_type") in BY_LENGTH]


def _counts_places(config: Any) -> bool:
    # Llama 4 scales queries by their places in the attention's input, not by their positions.
    return bool(getattr(config, "attn_temperature_tuning", False))


def check_documents(model_config: PreTrainedConfig, training: TrainingConfig, *, name: str) -> None:
    """Check that documents in one row give the same as in separate rows, if a trial on a few tokens cannot show it.

    Raises:
        GateauError: documents in one row would not be computed exactly.
    """
    if not training.side_by_side or not (training.packs or training.batch_size > 1):
        return
    config: Any = model_config.get_text_config(decoder=True)
    reason = "its attention counts tokens from the begin of the row" if _counts_places(config) else None
    farthest = max(training.max_length, 0 if training.skip is None else training.skip.length)
    for rope in _ropes_by_length(config):
        declared = config.max_position_embeddings
        unscaled = min(declared, rope.get("original_max_position_embeddings") or declared)
        if farthest > unscaled:
            reason = (
                f"beyond {unscaled:,} positions the longest document of a row decides the rotary embedding of all "
                f"(rope_type {rope['rope_type']})"
            )
    if reason is not None:
        raise GateauError(
            "training.architecture",
            f"{name} (model type {model_config.model_type}) cannot be trained on several documents in one row: "
            f"{reason}. Set training.batching to padded or sorted, and training.batch_size to 1.",
        )


def _unsupported(model_config: PreTrainedConfig, name: str, reason: str) -> GateauError:
    return GateauError(
        "training.sequence_parallel",
        f"training.sequence_parallel: {name} (model type {model_config.model_type}) cannot be trained by "
        f"ranks that share a sequence: {reason}. Set sequence_parallel to 1.",
    )


_PACKAGES = {"tensorboard": ("tensorboard", "tensorboardX"), "wandb": ("wandb",), "mlflow": ("mlflow",)}
_WITHOUT_LIGER = "Install liger-kernel on a machine with a GPU, or set training.liger to false."


def _installed(package: str) -> bool:
    return importlib.util.find_spec(package) is not None


def check_packages(training: TrainingConfig, *, installed: Callable[[str], bool] = _installed) -> None:
    """Check that the packages that the settings name are installed.

    Raises:
        GateauError: a package of `training.report_to`, liger-kernel or peft is missing, or no tracker takes the data.
    """
    if training.report_data and not {"wandb", "mlflow"}.intersection(training.report_to):
        raise GateauError(
            "training.conflict",
            "training.report_data: only W&B and MLflow keep data. Add one to report_to, or set report_data to false.",
        )
    for name in training.report_to:
        if not any(installed(package) for package in _PACKAGES[name]):
            raise GateauError(
                "training.package",
                f"training.report_to: {name} is not installed. Run `pip install {name}` in this environment, or "
                "remove it from the list.",
            )
    if training.liger and not installed("liger_kernel"):
        raise GateauError(
            "training.package", f"training.liger: the package liger-kernel is not installed. {_WITHOUT_LIGER}"
        )
    if training.lora is not None and not installed("peft"):
        raise GateauError(
            "training.package",
            "training.lora: the package peft is not installed. Run `pip install peft`, or remove lora.",
        )


def check_device(training: TrainingConfig, *, cuda: bool) -> None:
    """Check that the training machine supports the settings.

    Raises:
        GateauError: float16 or Liger without a GPU.
    """
    if training.dtype == "float16" and not cuda:
        raise GateauError("training.no_gpu", "training.dtype float16 needs a GPU. Use bfloat16 or float32.")
    if training.liger and not cuda:
        raise GateauError(
            "training.no_gpu",
            f"training.liger: Liger's kernels need a GPU, and this machine has none. {_WITHOUT_LIGER}",
        )


def check_ranks(training: TrainingConfig, *, ranks: int) -> None:
    """Check that the number of running ranks is the one that the batches are planned for.

    Raises:
        GateauError: the two numbers differ.
    """
    if ranks != training.processes:
        raise GateauError(
            "training.processes",
            f"training.processes is {training.processes}, but {plural(ranks, 'rank')} started. It counts the ranks on "
            "all machines: set it to what training.launcher starts, or correct the launcher.",
        )


def fit_to_rows(model: PreTrainedModel, training: TrainingConfig) -> None:
    """Let `model` compute the loss in chunks, and attend within the documents of a row, where `training` needs that.

    Raises:
        GateauError: the model cannot be trained this way. Under ZeRO-3 all ranks must call this.
    """
    from gateau_dagster.models.training_attention import attend_within_documents
    from gateau_dagster.training.response_loss import use_chunked_loss

    check_documents(model.config, training, name=type(model).__name__)
    if training.chunked_loss:
        use_chunked_loss(model)
    if training.side_by_side:
        attend_within_documents(model)
    if training.sequence_parallel > 1:
        check_shareable(model, size=training.sequence_parallel)


def check_shareable(model: PreTrainedModel, *, size: int) -> None:
    """Check that `size` ranks can share rows. `model` attends within documents and has the chunked loss.

    Raises:
        GateauError: its heads cannot be split, or a trial shows that a part of a row does not come out as in the whole.
    """
    from gateau_dagster.training.sequence_parallel import parts_differ

    name = type(model).__name__
    check_heads(model.config, size, name=name)
    reason = parts_differ(model)
    if reason is not None:
        raise _unsupported(model.config, name, reason)


def tileable(model: PreTrainedModel, training: TrainingConfig, *, cuda: bool) -> bool:
    """Return whether the training may compute the feed-forward layers in tiles; `auto` never does on a CPU.

    Raises:
        GateauError: the settings ask for tiles, but this model's layers cannot be tiled.
    """
    from gateau_dagster.training.memory_levers import why_untiled

    if training.tiled_mlp == "off" or (training.tiled_mlp == "auto" and not cuda):
        return False
    reason = why_untiled(model)
    if reason is not None and training.tiled_mlp != "auto":
        raise GateauError(
            "training.architecture",
            f"training.tiled_mlp: {type(model).__name__} (model type {model.config.model_type}) cannot compute its "
            f"feed-forward layers in tiles: {reason}. Set training.tiled_mlp: auto.",
        )
    return reason is None


def check_architecture(model_config: PreTrainedConfig, training: TrainingConfig, *, name: str) -> str | None:
    """Check, before any weights are read, that a model can be trained on the planned rows, and in tiles if set.

    A small random model of the architecture is tried. If none can be built, the training checks the model itself.

    Args:
        model_config: of the model.
        training: its training.
        name: of the model, for messages.

    Returns:
        Why no small model could be tried; None if one was.

    Raises:
        GateauError: the model cannot be trained with these settings.
    """
    if training.sequence_parallel > 1:
        check_heads(model_config, training.sequence_parallel, name=name)
    check_documents(model_config, training, name=name)
    try:
        model = small_model(model_config)
    except NoSmallModelError as error:
        return str(error)
    fit_to_rows(model, training)
    tileable(model, training, cuda=False)
    return None


_MOST = 50_000_000  # parameters: 0.2 GB
_HEAD = 16  # dimensions of a head
# Sizes that no other size depends on.
_SMALL = {
    "vocab_size": 64,
    "vocab_size_per_layer_input": 64,
    "intermediate_size": 32,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 32,
    "num_experts": 4,
    "num_local_experts": 4,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
}


class NoSmallModelError(Exception):
    """The reason why no small model of an architecture was built."""


def small_model(config: PreTrainedConfig) -> PreTrainedModel:
    """Return a random model, float32 on the CPU, with the heads and kinds of layers of `config`, but smaller sizes.

    Raises:
        NoSmallModelError: these sizes do not fit the architecture, or make it no smaller than 50M parameters.
    """
    import torch
    from transformers import AutoModelForCausalLM

    try:
        small = _smaller(config)
        with warnings.catch_warnings(), torch.random.fork_rng(devices=[]):
            warnings.simplefilter("ignore")
            torch.manual_seed(0)
            with torch.device("meta"):
                planned = AutoModelForCausalLM.from_config(small, dtype=torch.float32)
            if sum(each.numel() for each in planned.parameters()) > _MOST:
                raise NoSmallModelError(f"a small model of it has more than {_MOST:,} parameters")
            model = AutoModelForCausalLM.from_config(small, dtype=torch.float32)
            with torch.no_grad():
                model(input_ids=torch.arange(8)[None])
    except NoSmallModelError:
        raise
    except Exception as error:  # each architecture's code raises its own types at sizes it does not expect
        first = str(error).partition("\n")[0]
        raise NoSmallModelError(f"a small model of it cannot be built ({type(error).__name__}: {first})") from error
    return model


def _smaller(config: PreTrainedConfig) -> PreTrainedConfig:
    small = copy.deepcopy(config)
    text: Any = small.get_text_config(decoder=True)
    layers, kinds = text.num_hidden_layers, getattr(text, "layer_types", None) or [None]
    # Up to the first layer of each kind: kinds differ in their attention, and later layers repeat them.
    kept = min(layers, max(2, 1 + max(kinds.index(kind) for kind in {*kinds})))
    for name, value in {**vars(text)}.items():
        if isinstance(value, list) and len(value) == layers:
            setattr(text, name, value[:kept])
    text.num_hidden_layers = kept
    for name, size in _SMALL.items():
        if isinstance(getattr(text, name, None), int):
            setattr(text, name, min(size, getattr(text, name)))
    if isinstance(heads := getattr(text, "num_attention_heads", None), int):
        text.hidden_size = heads * _HEAD
        if isinstance(getattr(text, "head_dim", None), int):
            text.head_dim = _HEAD
    for part in (small, text):
        if isinstance(getattr(part, "pad_token_id", None), int):
            # The real one may lie outside the small vocabulary, which torch refuses.
            part.pad_token_id = 0
    return small
