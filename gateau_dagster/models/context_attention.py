"""Compute a_t of Eq. 4: how much the response attends to each context token, without a full attention matrix.

While the model runs, the rows softmax(q_y Kᵀ) of the response are recomputed in each layer in blocks of heads and rows,
and added up. Memory is linear in the prompt's length and does not grow with the response.
"""

# Why the rows are recomputed, what it costs, and when another way is better:
#
# - `output_attentions=True` is the obvious way, and the twin in the tests. It needs eager attention, and keeps T x T
#   weights of every head and layer: for 16k tokens and 32 heads that is 32 GiB per layer in float32.
# - FlashAttention and sdpa keep no weights. What they get is enough: the interface passes query and key as they enter
#   the product, rotated and normalised. Hooks on the modules would see states before that, by architecture.
# - The price is one more product of the response's queries and all keys, in each layer. It grows with the response: at
#   |y| = T it repeats half of attention's products. On a GPU a pass of 16k tokens with 200 response tokens takes about
#   5 % longer for it (docs/evidence/benchmarks.md). The same pass gives the perplexity of the full prompt.
# - The mean over rows is summed in float64: a weight is about 1/T, and thousands of them are added up.

from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from transformers import PreTrainedModel

from gateau_dagster.errors import GateauError
from gateau_dagster.models.attention_kernels import AttentionSpec, attention_rows, row_blocks
from gateau_dagster.models.loaded import LoadedModel
from gateau_dagster.models.mask_pattern import MaskPattern, UnknownAttentionError, why_failed
from gateau_dagster.models.memory import is_out_of_memory
from gateau_dagster.models.model_config import ATTENTION_CURE, attention_layers_of, unseen_by_class
from gateau_dagster.models.packing import lone_states, narrows_last_layer, packed_states, vocabulary
from gateau_dagster.models.probe import ROUNDING
from gateau_dagster.models.prompt import Prompt

_WHAT = "segment attention (Eq. 4)"
_PROBE = (1, 4, 2, 2)  # tokens of prefix, context, suffix and response of a probe's prompt

_unseen: WeakKeyDictionary[PreTrainedModel, str | None] = WeakKeyDictionary()


class _UnseenError(GateauError):
    """Attention weights that cannot be read; `reason` says why, without naming the model."""

    reason: str


@dataclass(kw_only=True)
class _AttentionCollector:
    """The attention from the response rows to the context columns, layer by layer."""

    rows: tuple[int, int]
    columns: tuple[int, int]
    layers: list[Tensor] = field(default_factory=list)  # one entry per call: float64 [C], mean over heads and rows

    def observe(self, query: Tensor, key: Tensor, pattern: MaskPattern, how: AttentionSpec) -> None:
        """Add a layer's query [H, T, D] and key [H_kv, T, D]."""
        total = torch.zeros(query.shape[1], dtype=torch.float64, device=query.device)
        # Only rows of the response, and only keys that they see: in a chunked layer, a row sees nothing before its
        # chunk.
        for piece, rows in self._pieces(query.shape[1], pattern):
            into, q, k = total[piece], query[:, piece], key[:, piece]
            for heads, some in row_blocks(q, k.shape[0], *rows, how):
                weights = attention_rows(q, k, heads, some, how)
                weights = weights.reshape(-1, weights.shape[-1])  # [h G R, N]
                # A product with ones sums columns faster than `sum` does.
                into[how.first_key(some.start) : some.stop] += weights.new_ones(weights.shape[0]) @ weights
        first, last = self.columns
        self.layers.append(total[first:last] / (query.shape[0] * (self.rows[1] - self.rows[0])))

    def _pieces(self, length: int, pattern: MaskPattern) -> list[tuple[slice, tuple[int, int]]]:
        """Return each piece that holds response rows, with these rows counted from its start."""
        found, begin = [], 0
        for size in pattern.pieces((length,)):
            start, stop = max(self.rows[0] - begin, 0), min(self.rows[1] - begin, size)
            if start < stop:
                found.append((slice(begin, begin + size), (start, stop)))
            begin += size
        return found


@dataclass(frozen=True, kw_only=True)
class ContextAttention:
    """The result of one pass over the full prompt."""

    attention: Tensor  # a_t of each context token: float64 [C] on the device
    states: Tensor  # hidden states for forward.token_nll [|y|, hidden]: the full prompt's PPL needs no other pass


@torch.no_grad()
def context_attention(loaded: LoadedModel, prompt: Prompt) -> ContextAttention:
    """Return the attention weight from the response to each context token, a mean over layers, heads and response
    tokens.

    Each layer's softmax is computed in float32 (float64 for a float64 model), as the model computes it: causal, with
    its sliding window, soft cap or sinks. Raises GateauError for a model that does not run its attention through
    transformers' attention interface, where the weights cannot be read. Nothing waits for the device.
    """
    require_attention_interface(loaded)
    start, stop = prompt.response_span
    assert start > 0, "the first response token needs a token before it"
    collector = _AttentionCollector(rows=(start, stop), columns=prompt.context_span)
    try:
        read = [(start - 1, stop)] if narrows_last_layer(loaded) else None  # the last row's query is read, too
        states, _ = packed_states(loaded, [prompt.ids], collector.observe, read)
    except UnknownAttentionError as error:
        raise _unsupported(loaded, str(error)) from error
    expected = attention_layers_of(loaded.model.config)
    # A layer that does not call the interface would be missing in the mean, silently. So they are counted.
    if len(collector.layers) != expected:
        raise _unsupported(loaded, f"it called the interface {len(collector.layers)} times for {expected} layers")
    layers = [layer.to(loaded.device) for layer in collector.layers]  # with device_map, they are on several GPUs
    return ContextAttention(attention=torch.stack(layers).mean(dim=0), states=states[start - 1 : stop - 1])


def require_seen(loaded: LoadedModel) -> None:
    """Raise GateauError if this model's attention weights cannot be read; see attention_unseen."""
    reason = attention_unseen(loaded)
    if reason is not None:
        raise _unsupported(loaded, reason)


def require_attention_interface(loaded: LoadedModel, what: str = _WHAT) -> None:
    """Raise GateauError if the model's class cannot show the attention weights that `what` needs; runs no pass."""
    reason = unseen_by_class(type(loaded.model), loaded.model.config)
    if reason is not None:
        raise _unsupported(loaded, reason, what)


def attention_unseen(loaded: LoadedModel) -> str | None:
    """Return why this model's attention weights cannot be read; None if they can. Probed once per loaded model.

    Besides the checks of `require_attention_interface`, it runs a prompt of a few tokens. So an unknown kind of
    attention is reported before the first sample.
    """
    model = loaded.model
    if model not in _unseen:
        reason = unseen_by_class(type(model), model.config)
        _unseen[model] = _tried(loaded) if reason is None else reason
    return _unseen[model]


def _tried(loaded: LoadedModel) -> str | None:
    ids, parts = [number % vocabulary(loaded) for number in range(sum(_PROBE))], []
    for count in _PROBE:
        parts.append(tuple(ids[:count]))
        del ids[:count]
    prefix, context, suffix, response = parts
    prompt = Prompt(prefix=prefix, context=context, suffix=suffix, response=response)
    try:
        states = context_attention(loaded, prompt).states
        own = lone_states(loaded, prompt.ids)[prompt.response_span[0] - 1 : -1]
    except _UnseenError as error:
        return error.reason
    except GateauError as error:
        return str(error)
    except (TypeError, ValueError, AttributeError, IndexError, RuntimeError) as error:
        if is_out_of_memory(error):
            raise  # it does not depend on the model
        return why_failed(error, "with attention that is watched")
    if not ((states - own).norm(dim=-1) <= ROUNDING[own.dtype] * own.norm(dim=-1)).all():
        return "a pass in which its attention is watched comes out otherwise than its own"
    return None


def _unsupported(loaded: LoadedModel, detail: str, what: str = _WHAT) -> _UnseenError:
    found = _UnseenError(
        "models.no_attention",
        f"{what} needs a decoder that runs its attention through transformers' attention "
        f"interface, and {loaded.name} ({type(loaded.model).__name__}, model type {loaded.model.config.model_type}) "
        f"does not: {detail}. {ATTENTION_CURE}",
    )
    found.reason = detail
    return found
