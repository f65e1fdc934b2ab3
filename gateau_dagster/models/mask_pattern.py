"""Describe which keys a query sees as two numbers instead of a T x T mask.

transformers asks a mask function for the mask of a layer and passes the result to the attention function. Ours returns
a description of the mask, after comparing it with the requested one.
"""

# A mask of T x T booleans is 4 GiB at 64k tokens, and says what two numbers say. But a pattern is a claim about the
# model's code. So each mask function that transformers passes is compared with the pattern at the places where patterns
# differ. A model with another condition fails here, and gets one prompt per pass.

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from transformers import AttentionMaskInterface

NAME = "gateau_documents"  # names our attention function and our mask function in transformers' registries
_UNKNOWN = ("position_bias", "cache")


class UnknownAttentionError(Exception):
    """The model needs attention that a pattern and the arguments known here cannot describe."""


@dataclass(frozen=True, kw_only=True)
class MaskPattern:
    """Query q of a document sees key k when k <= q, and q - k < window, and both are in one chunk.

    Positions count from the document's first token; None means no such limit.
    """

    window: int | None = None
    chunk: int | None = None

    def sees(self, query: int, key: int) -> bool:
        """Return whether a query sees a key, by the definition."""
        near = self.window is None or query - key < self.window
        return key <= query and near and (self.chunk is None or query // self.chunk == key // self.chunk)

    def pieces(self, lengths: tuple[int, ...]) -> tuple[int, ...]:
        """Return the lengths of the runs of tokens that see nothing outside themselves: the documents, or their
        chunks.
        """
        size = self.chunk
        if size is None:
            return lengths
        return tuple(min(size, length - begin) for length in lengths for begin in range(0, length, size))


def why_failed(error: Exception, where: str) -> str:
    """Return a sentence on why a model's code failed `where` it got a pattern in place of its mask."""
    if MaskPattern.__name__ in str(error):
        return "its code works on the numbers of its mask itself"
    return f"its code fails {where} ({type(error).__name__}: {error})"


def known_pattern(mask: object, others: Mapping[str, object]) -> MaskPattern:
    """Return the pattern that a layer's attention function received as its mask.

    Raises UnknownAttentionError if the mask is the model's own. So does one of `others`, the function's other
    arguments, that would change the weights in an unknown way.
    """
    for name in _UNKNOWN:
        if others.get(name) is not None:
            raise UnknownAttentionError(f"it has attention with {name}")
    if not isinstance(mask, MaskPattern):
        raise UnknownAttentionError("it makes its masks itself")
    return mask


def describe_mask(
    *,
    mask_function: Callable[..., Any],
    local_size: int | None = None,
    use_vmap: bool = False,
    **_: Any,
) -> MaskPattern:
    """Return the pattern that agrees with `mask_function`, for transformers to use as a mask.

    Raises UnknownAttentionError if no pattern agrees (bidirectional, added conditions, ...).
    """
    if not use_vmap:  # set if the model adds its own conditions
        queries, keys = _pairs(local_size)
        zero = torch.tensor(0)
        try:
            asked = mask_function(zero, zero, torch.tensor(queries), torch.tensor(keys)).tolist()
        except IndexError as error:  # it looks up each token, and there are fewer than the probe uses
            raise UnknownAttentionError("its mask depends on the tokens") from error
        by_size = [MaskPattern(window=local_size), MaskPattern(chunk=local_size)]
        for pattern in by_size if local_size is not None else [MaskPattern()]:
            if asked == [pattern.sees(*pair) for pair in zip(queries, keys, strict=True)]:
                return pattern
    raise UnknownAttentionError("its mask is neither causal, nor that with a sliding window or chunks")


@lru_cache
def _pairs(local_size: int | None) -> tuple[list[int], list[int]]:
    # Queries and keys at which the candidates, and any of them off by one, differ.
    size = local_size or 5
    pairs = [
        (query, key)
        for query in (0, 1, size - 1, size, size + 1, 2 * size)
        for key in (0, 1, query - size - 1, query - size, query - size + 1, query - 1, query, query + 1)
        if 0 <= key <= 2 * size + 1
    ]
    return [query for query, _ in pairs], [key for _, key in pairs]


AttentionMaskInterface.register(NAME, describe_mask)  # pyright: ignore[reportArgumentType]
