"""Trying out whether a model that calls itself causal is: what it says of a token must not depend on what follows."""

import torch
from transformers import PreTrainedModel

from gateau_dagster.models.probe import ROUNDING, probe_ids, probing

_TOKENS = 8


def sees_what_follows(model: PreTrainedModel) -> bool:
    """Whether another last token changes the logits of the token before it, by more than rounding does.

    So it is with CPM-Ant, which reads its input as a whole, with BERT and its like without `is_decoder`, and with
    decoders that were made to embed. A trial that fails says nothing: the first use tells why. Under ZeRO-3 all ranks
    must call it.
    """
    first = probe_ids(model, _TOKENS)
    ids = torch.stack([first, torch.cat([first[:-1], first[-1:] - 1])])
    try:
        with probing(model):
            one, other = model(input_ids=ids, use_cache=False).logits[:, -2]
    except (TypeError, ValueError, AttributeError, IndexError, RuntimeError):
        return False
    # Tokens that do not see what differs come of the same products of the same shapes.
    return bool((one - other).norm() > ROUNDING[one.dtype] / 10 * one.norm())
