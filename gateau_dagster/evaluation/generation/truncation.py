"""LongBench's cut: a text that is too long loses its middle, since its instructions stand at both ends."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gateau_dagster.errors import UnscorableSampleError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def cut_middle(tokenizer: PreTrainedTokenizerBase, text: str, limit: int) -> tuple[str, int]:
    """A text of at most about `limit` tokens, and how many tokens were cut out of its middle.

    As THUDM/LongBench's pred.py has it: tokens are counted with the tokenizer's special ones, half of the limit is
    kept at either end, and the halves are joined as decoded text, without special tokens. Encoded again it may have
    some tokens more or less than `limit`.

    Raises UnscorableSampleError for text that is not Unicode.
    """
    assert limit >= 2, "half of it is kept at either end"
    try:
        ids = tokenizer(text, verbose=False)["input_ids"]
    except (UnicodeEncodeError, TypeError) as error:
        raise UnscorableSampleError(f"the text cannot be tokenised: {error}") from error
    assert isinstance(ids, list)
    if len(ids) <= limit:
        return text, 0
    half = limit // 2
    ends = [str(tokenizer.decode(part, skip_special_tokens=True)) for part in (ids[:half], ids[-half:])]
    return "".join(ends), len(ids) - 2 * half
