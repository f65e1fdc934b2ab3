"""The passes of a causal language model that scoring is made of, up to the NLL of the response tokens."""

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from gateau_dagster.models.loading import LoadedModel
from gateau_dagster.models.output_layer import head
from gateau_dagster.models.packing import lone_states, narrows_last_layer, packed_states, packs_documents, vocabulary
from gateau_dagster.models.prompt import Prompt

__all__ = ["Float64", "head", "response_nll_tensor", "response_states", "token_nll"]

Float64: TypeAlias = npt.NDArray[np.float64]

# Elements of a chunk of logits: 2^24 are 64 MB in float32, and 512 rows of a vocabulary of 32k. Fewer rows read the
# output layer's weights too often.
_LOGITS_PER_CHUNK = {"cpu": 2**24, "cuda": 2**27}


@torch.no_grad()
def response_states(loaded: LoadedModel, prompts: Sequence[Prompt]) -> Tensor:
    """Last hidden states that predict the response tokens, prompt after prompt: [Σ|y|, hidden], the model's dtype.

    The prompts are one packed row, where the model can run one, and otherwise a pass each: the states are those of
    each prompt alone. Raises GateauError when tokenizer and model do not belong together, or the model cannot be split.
    """
    if not packs_documents(loaded):
        return torch.cat([_predicting(lone_states(loaded, prompt.ids), prompt, 0) for prompt in prompts])
    spans = [predicting_span(prompt) for prompt in prompts] if narrows_last_layer(loaded) else None
    states, starts = packed_states(loaded, [prompt.ids for prompt in prompts], read=spans)
    return torch.cat([_predicting(states, prompt, start) for prompt, start in zip(prompts, starts, strict=True)])


def predicting_span(prompt: Prompt) -> tuple[int, int]:
    """The prompt's rows whose states predict the response tokens: [start, stop)."""
    start, stop = prompt.response_span
    assert start > 0, "the first response token needs a token before it"
    return start - 1, stop - 1


def _predicting(states: Tensor, prompt: Prompt, begin: int) -> Tensor:
    """The rows [|y|, hidden] before each response token of a prompt that begins at row `begin`."""
    start, stop = predicting_span(prompt)
    return states[begin + start : begin + stop]


@torch.no_grad()
def token_nll(loaded: LoadedModel, states: Tensor, targets: Sequence[int]) -> Tensor:
    """-log softmax(head(state))[target] in nats for `states` [n, hidden]: float64 [n] on the states' device.

    Log-softmax in float32 or better. Nothing waits for the device.
    """
    assert states.shape[0] == len(targets)
    wanted = torch.tensor(targets)
    if states.is_cuda:
        wanted = wanted.pin_memory().to(states.device, non_blocking=True)
    step = max(1, _LOGITS_PER_CHUNK.get(states.device.type, 2**23) // vocabulary(loaded))
    # Written in place: small results kept between the chunks would hold on to the memory of each.
    nll = torch.empty(len(targets), dtype=torch.float64, device=states.device)
    for rows, some, out in zip(states.split(step), wanted.split(step), nll.split(step), strict=True):
        out.copy_(_chunk_nll(loaded, rows, some), non_blocking=True)
    return nll


def _chunk_nll(loaded: LoadedModel, states: Tensor, wanted: Tensor) -> Tensor:
    """token_nll [n] of rows whose logits are held at once; they are gone when it returns."""
    logits = head(loaded, states)
    logs = torch.log_softmax(logits, dim=-1, dtype=torch.promote_types(logits.dtype, torch.float32))
    return -logs.gather(1, wanted[:, None].to(logs.device))[:, 0].double()


def response_nll_tensor(loaded: LoadedModel, prompts: Sequence[Prompt]) -> Tensor:
    """-log P(y_i | c, x, y_<i) in nats, prompt after prompt: float64 [Σ|y|] on the device, without waiting for it."""
    targets = [token for prompt in prompts for token in prompt.response]
    return token_nll(loaded, response_states(loaded, prompts), targets)
