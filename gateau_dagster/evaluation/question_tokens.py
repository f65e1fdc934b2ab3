"""Measure questions in tokens; one tokenizer counts for all variants, because all get the same questions."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from gateau_dagster.errors import GateauError
from gateau_dagster.evaluation.materials import Materials

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def base_tokenizer(materials: Materials) -> PreTrainedTokenizerBase:
    """Return the base model's tokenizer, without loading its weights where the model is on this machine."""
    from gateau_dagster.models.known_model import known_tokenizer

    found = known_tokenizer(materials.config, materials.config.training.model)
    return found if found is not None else materials.model("base").tokenizer


def lengths_within(lengths: Iterable[int], longest: int) -> list[int]:
    """Return the lengths up to `longest`, each once, in order."""
    return sorted({length for length in lengths if length <= longest})


def check_lengths(place: str, lengths: Iterable[int], longest: int, *, given: bool) -> None:
    """Raise GateauError where every length is above `longest`, or where any is and the lengths were `given`."""
    above = sorted({length for length in lengths if length > longest})
    if above and (given or not lengths_within(lengths, longest)):
        raise GateauError(
            f"{place}: {', '.join(map(str, above))} tokens are more than the {longest} that scoring.max_length leaves "
            "for a question: give shorter ones, or raise it"
        )
