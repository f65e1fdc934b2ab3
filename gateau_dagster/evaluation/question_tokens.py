"""How questions are measured in tokens: all variants are asked the same, so one tokenizer counts for all of them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from gateau_dagster.errors import GateauError
from gateau_dagster.evaluation.materials import Materials

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def base_tokenizer(materials: Materials) -> PreTrainedTokenizerBase:
    """That of the model that is trained from, without its weights where it lies on this machine."""
    from gateau_dagster.models.known_model import known_tokenizer

    found = known_tokenizer(materials.config, materials.config.training.model)
    return found if found is not None else materials.model("base").tokenizer


def lengths_within(lengths: Iterable[int], longest: int) -> list[int]:
    """Those up to `longest`, each once, in order."""
    return sorted({length for length in lengths if length <= longest})


def check_lengths(place: str, lengths: Iterable[int], longest: int, *, given: bool) -> None:
    """Raises GateauError where no length is up to `longest`, or one is above that was `given` and is no default."""
    above = sorted({length for length in lengths if length > longest})
    if above and (given or not lengths_within(lengths, longest)):
        raise GateauError(
            f"{place}: {', '.join(map(str, above))} tokens are more than the {longest} that scoring.max_length leaves "
            "for a question: give shorter ones, or raise it"
        )
