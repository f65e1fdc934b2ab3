"""A causal language model split at its output layer, so that only the rows that count meet it."""

from typing import Any

import torch
from torch import Tensor
from transformers.modeling_outputs import MoeModelOutputWithPast

from gateau_dagster.errors import GateauError
from gateau_dagster.models.loading import LoadedModel


def backbone(loaded: LoadedModel) -> torch.nn.Module:
    """The model without its output layer; raises GateauError when it does not keep the two apart."""
    body = loaded.model.base_model
    if body is loaded.model:
        raise _unsplittable(loaded)
    return body


@torch.no_grad()
def head(loaded: LoadedModel, states: Tensor) -> Tensor:
    """Logits [n, vocabulary] of hidden states [n, hidden].

    The model's own forward is run around a backbone that returns `states`, so that whatever it does with logits
    (soft cap in Gemma, scales in Granite and Cohere) is done here too, without a list of architectures.
    """
    body = backbone(loaded)
    calls = 0

    def replay(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        del args, kwargs
        calls += 1
        return _Replayed(last_hidden_state=states[None])  # pyright: ignore[reportArgumentType]

    own = body.__dict__.get("forward")  # accelerate's hooks and compiled bodies live here
    body.forward = replay
    try:
        ids = torch.zeros((1, states.shape[0]), dtype=torch.long, device=states.device)
        logits = loaded.model(input_ids=ids, use_cache=False, return_dict=True).logits
    finally:
        if own is None:
            del body.forward
        else:
            body.forward = own
    if calls != 1 or logits.shape[:2] != (1, states.shape[0]):
        raise _unsplittable(loaded)
    return logits[0]


class _Replayed(MoeModelOutputWithPast):
    """A backbone's output of which only the hidden states are known; every other field reads None."""

    def __getattr__(self, name: str) -> None:
        if name.startswith("__"):
            raise AttributeError(name)


def _unsplittable(loaded: LoadedModel) -> GateauError:
    return GateauError(
        f"{loaded.name} ({loaded.model.config.model_type}) does not keep its output layer apart from its body "
        "(`base_model`), as transformers' own models do: use an architecture that transformers implements"
    )
