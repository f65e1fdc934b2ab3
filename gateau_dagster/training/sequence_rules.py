"""Decide from DeepSpeed's file and the model's config.json which trainings may share a sequence among ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gateau_dagster.errors import GateauError

if TYPE_CHECKING:
    from transformers.configuration_utils import PreTrainedConfig


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
    """Check that `size` ranks can split the heads of a model whose attention is plainly causal.

    Raises:
        GateauError: they cannot, or some layers do not see the whole sequence (the exchange of heads drops masks).
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
            f"{size} processes. Set a divisor of both.",
        )
    kinds = set(getattr(config, "layer_types", None) or [])
    if getattr(config, "sliding_window", None) is not None or kinds - {"full_attention"}:
        raise unsupported(
            model_config,
            name,
            "it has layers that do not see the whole sequence, and the exchange of heads drops their masks",
        )


def unsupported(model_config: PreTrainedConfig, name: str, reason: str) -> GateauError:
    """Return the error for a model, named `name`, that cannot be trained this way."""
    return GateauError(
        "training.sequence_parallel",
        f"training.sequence_parallel: {name} (model type {model_config.model_type}) cannot be trained by "
        f"ranks that share a sequence: {reason}. Set sequence_parallel to 1.",
    )
