"""Load a tokenizer from its files, and nothing else: transformers creates any class that `tokenizer_class` names."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


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
