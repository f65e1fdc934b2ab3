"""How far a model can read: one with learned positions has none beyond its table."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers.configuration_utils import PreTrainedConfig


def learned_positions(config: PreTrainedConfig) -> int | None:
    """How many positions a model has learned; None where it computes them, and so has no end of them."""
    text_config = config.get_text_config(decoder=True)
    if getattr(text_config, "rope_parameters", None):
        return None
    return getattr(text_config, "max_position_embeddings", None)
