"""Load a tokenizer from its files, and nothing else: transformers creates any class that `tokenizer_class` names."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from gateau_dagster.errors import GateauError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def token_offsets(tokenizer: PreTrainedTokenizerBase, text: str) -> list[tuple[int, int]]:
    """Return the first and one-past-last character of each token of a text, in order, without overlaps.

    The tokens are those of models.prompt.encode. If several tokens make up one character, the first has it, and the
    others are empty.

    Raises GateauError for a tokenizer that does not report offsets.
    """
    if not text:
        return []
    if not tokenizer.is_fast:
        raise GateauError(
            "models.no_offsets",
            f"{tokenizer.name_or_path}: this tokenizer ({type(tokenizer).__name__}) does not report which "
            "characters its tokens cover: use a model with a tokenizer.json",
        )
    return ids_and_offsets(tokenizer, text)[1]


def ids_and_offsets(tokenizer: PreTrainedTokenizerBase, text: str) -> tuple[tuple[int, ...], list[tuple[int, int]]]:
    """Return the token ids of a text and the offsets of `token_offsets`, from a fast tokenizer."""
    encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
    found: list[tuple[int, int]] = []
    last = 0
    for begin, end in encoded["offset_mapping"]:  # pyright: ignore[reportGeneralTypeIssues]
        first = max(begin, last)
        last = max(first, end)
        found.append((first, last))
    return tuple(encoded["input_ids"]), found  # pyright: ignore[reportArgumentType]


def load_tokenizer(source: str | Path, **options: Any) -> PreTrainedTokenizerBase:
    """Return the tokenizer of a folder or of the hub; `options` go to `AutoTokenizer.from_pretrained`.

    Raises:
        TypeError: its tokenizer_config.json names another class, such as a model. Damaged files raise what transformers
            raises.
    """
    from transformers import AutoTokenizer, PreTrainedTokenizerBase

    found: Any = AutoTokenizer.from_pretrained(source, **options)
    if not isinstance(found, PreTrainedTokenizerBase):
        raise TypeError(f"the tokenizer_class in its tokenizer_config.json is {type(found).__name__}, not a tokenizer")
    return found
