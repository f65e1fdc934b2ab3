"""One pass of a causal language model, split at its output layer, so that only the rows that count meet it."""

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from transformers.modeling_outputs import MoeModelOutputWithPast

from gateau_dagster.errors import GateauError
from gateau_dagster.scoring.loading import LoadedModel
from gateau_dagster.scoring.prompt import Prompt

Float64: TypeAlias = npt.NDArray[np.float64]

# Elements of a chunk of logits: 2^24 are 64 MB in float32, and 128 rows of a vocabulary of 128k.
_LOGITS_PER_CHUNK = 2**24


@torch.no_grad()
def response_states(loaded: LoadedModel, prompts: Sequence[Prompt]) -> Tensor:
    """Last hidden states that predict the response tokens, prompt after prompt: [Σ|y|, hidden], the model's dtype.

    Raises GateauError when tokenizer and model do not belong together, or the model cannot be split.
    """
    ids, mask = _batch(loaded, prompts)
    hidden = _backbone(loaded)(input_ids=ids, attention_mask=mask, use_cache=False, return_dict=True).last_hidden_state
    rows = []
    for index, prompt in enumerate(prompts):
        start, stop = prompt.response_span
        assert start > 0, "the first response token needs a token before it"
        rows.append(hidden[index, start - 1 : stop - 1])  # row t predicts token t + 1
    return torch.cat(rows)


@torch.no_grad()
def token_nll(loaded: LoadedModel, states: Tensor, targets: Sequence[int]) -> Float64:
    """-log softmax(head(state))[target] in nats for `states` [n, hidden], log-softmax in float32 or better: [n]."""
    assert states.shape[0] == len(targets)
    wanted = torch.tensor(targets, device=states.device)
    step = max(1, _LOGITS_PER_CHUNK // _vocabulary(loaded))
    parts = []
    for begin in range(0, len(targets), step):
        logits = head(loaded, states[begin : begin + step])
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        parts.append(torch.nn.functional.cross_entropy(logits, wanted[begin : begin + step], reduction="none"))
    return torch.cat(parts).double().cpu().numpy()


@torch.no_grad()
def head(loaded: LoadedModel, states: Tensor) -> Tensor:
    """Logits [n, vocabulary] of hidden states [n, hidden].

    The model's own forward is run around a backbone that returns `states`, so that whatever it does with logits
    (soft cap in Gemma, scales in Granite and Cohere) is done here too, without a list of architectures.
    """
    backbone = _backbone(loaded)
    calls = 0

    def replay(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        del args, kwargs
        calls += 1
        return _Replayed(last_hidden_state=states[None])  # pyright: ignore[reportArgumentType]

    own = backbone.__dict__.get("forward")  # accelerate's hooks live here
    backbone.forward = replay
    try:
        ids = torch.zeros((1, states.shape[0]), dtype=torch.long, device=states.device)
        logits = loaded.model(input_ids=ids, use_cache=False, return_dict=True).logits
    finally:
        if own is None:
            del backbone.forward
        else:
            backbone.forward = own
    if calls != 1 or logits.shape[:2] != (1, states.shape[0]):
        raise _unsplittable(loaded)
    return logits[0]


class _Replayed(MoeModelOutputWithPast):
    """A backbone's output of which only the hidden states are known; every other field reads None."""

    def __getattr__(self, name: str) -> None:
        if name.startswith("__"):
            raise AttributeError(name)


def _backbone(loaded: LoadedModel) -> torch.nn.Module:
    backbone = loaded.model.base_model
    if backbone is loaded.model:
        raise _unsplittable(loaded)
    return backbone


def _unsplittable(loaded: LoadedModel) -> GateauError:
    return GateauError(
        f"{loaded.name} ({loaded.model.config.model_type}) does not keep its output layer apart from its body "
        "(`base_model`), as transformers' own models do: use an architecture that transformers implements"
    )


def _vocabulary(loaded: LoadedModel) -> int:
    weight = loaded.model.get_input_embeddings().weight
    assert isinstance(weight, Tensor)
    return weight.shape[0]


def _batch(loaded: LoadedModel, prompts: Sequence[Prompt]) -> tuple[Tensor, Tensor | None]:
    """Token ids [B, T] padded on the right, and the mask of what is not padding, if anything is."""
    rows = [prompt.ids for prompt in prompts]
    vocabulary = _vocabulary(loaded)
    largest = max(max(row) for row in rows)
    if largest >= vocabulary:
        raise GateauError(
            f"{loaded.name}: the tokenizer gave token {largest}, but the model knows {vocabulary}: tokenizer and "
            "weights do not belong together"
        )
    longest = max(len(row) for row in rows)
    ids = torch.zeros((len(rows), longest), dtype=torch.long)
    mask = torch.zeros((len(rows), longest), dtype=torch.long)
    for index, row in enumerate(rows):
        ids[index, : len(row)] = torch.tensor(row)
        mask[index, : len(row)] = 1
    # Without padding no mask: torch then takes its causal kernel, which needs no T x T mask in memory.
    ragged = any(len(row) < longest for row in rows)
    return ids.to(loaded.device), mask.to(loaded.device) if ragged else None
