"""The pattern against whole masks of transformers, and that what it cannot say is refused."""

from typing import Any

import pytest
import torch
from transformers import masking_utils

from gateau_dagster.models.mask_pattern import MaskPattern, UnknownAttentionError, describe_mask

_LENGTH = 40


def _matrix(function: Any) -> torch.Tensor:
    index = torch.arange(_LENGTH)
    return function(torch.tensor(0), torch.tensor(0), index[:, None], index)


@pytest.mark.parametrize(
    ("function", "size", "want"),
    [
        (masking_utils.causal_mask_function, None, MaskPattern()),
        (masking_utils.sliding_window_causal_mask_function(1), 1, MaskPattern(window=1)),
        (masking_utils.sliding_window_causal_mask_function(7), 7, MaskPattern(window=7)),
        (masking_utils.chunked_causal_mask_function(7, torch.tensor([0])), 7, MaskPattern(chunk=7)),
    ],
)
def test_pattern_is_transformers_own_mask(function: Any, size: int | None, want: MaskPattern) -> None:
    got = describe_mask(mask_function=function, local_size=size, batch_size=1, q_length=_LENGTH)
    assert got == want
    seen = torch.tensor([[got.sees(query, key) for key in range(_LENGTH)] for query in range(_LENGTH)])
    torch.testing.assert_close(seen, _matrix(function))


@pytest.mark.parametrize(
    ("function", "size", "added"),
    [
        (masking_utils.bidirectional_mask_function, None, False),
        (masking_utils.sliding_window_bidirectional_mask_function(7), 7, False),
        (masking_utils.sliding_window_causal_mask_function(7), 8, False),
        (masking_utils.sliding_window_causal_mask_function(7), None, False),
        (masking_utils.chunked_causal_mask_function(7, torch.tensor([2])), 7, False),
        (masking_utils.causal_mask_function, 7, False),
        (masking_utils.causal_mask_function, None, True),
    ],
)
def test_other_masks_are_refused(function: Any, size: int | None, added: bool) -> None:
    with pytest.raises(UnknownAttentionError, match="neither causal"):
        describe_mask(mask_function=function, local_size=size, use_vmap=added)


def test_pieces_are_documents_or_their_chunks() -> None:
    assert MaskPattern(window=3).pieces((5, 2)) == (5, 2)
    assert MaskPattern(chunk=4).pieces((9, 4, 1)) == (4, 4, 1, 4, 1)
