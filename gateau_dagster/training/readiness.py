"""Check what a training needs besides its data, and what sequence parallelism cannot do, before anything is loaded."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from gateau_dagster.config.training import TrainingConfig
from gateau_dagster.errors import GateauError
from gateau_dagster.models.positions import BY_LENGTH, Rope, full_attention_ropes
from gateau_dagster.readable import plural

if TYPE_CHECKING:
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
        raise unsupported(
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
        raise unsupported(model_config, name, reason)


def _beyond_attention(config: Any) -> str | None:
    """Return what in the model, apart from its attention, depends on tokens that a rank does not hold."""
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
    """Return whether the attention scales queries by their places in its input, not by their positions (Llama 4)."""
    return bool(getattr(config, "attn_temperature_tuning", False))


def check_documents(model_config: PreTrainedConfig, training: TrainingConfig, *, name: str) -> None:
    """Check that documents in one row come out as they do alone, where a trial on a few tokens cannot show it.

    Raises:
        GateauError: they would not.
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


def unsupported(model_config: PreTrainedConfig, name: str, reason: str) -> GateauError:
    """Return the error for a model, named `name`, that cannot be trained this way."""
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
        GateauError: they differ.
    """
    if ranks != training.processes:
        raise GateauError(
            "training.processes",
            f"training.processes is {training.processes}, but {plural(ranks, 'rank')} started. It counts the ranks on "
            "all machines: set it to what training.launcher starts, or correct the launcher.",
        )
