"""How questions are measured in tokens: all variants are asked the same, so one tokenizer counts for all of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gateau_dagster.evaluation.materials import Materials

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def base_tokenizer(materials: Materials) -> PreTrainedTokenizerBase:
    """That of the model that is trained from, without its weights where it lies on this machine."""
    from gateau_dagster.models.known_model import known_tokenizer

    found = known_tokenizer(materials.config, materials.config.training.model)
    return found if found is not None else materials.model("base").tokenizer
