"""Compute a decoder's last layer and output layer only for the rows that are read.

In the last layer, keys and values are those of all tokens. Only the rows that are read go through the parts that work
on each token by itself: feed-forward layer, query and output projections, and the queries of attention.
"""

# Why the last layer is narrowed: scoring reads the states of the response only, a small part of a long prompt. In all
# other layers, every token's states feed the keys and values of the layer above. Above the last one, nothing reads the
# states of unread tokens. So of N layers, most of one is saved.
#
# Why with hooks: the layer's own code runs, with its norms, scales and experts. A copy of that code for each
# architecture would be out of date with each release. The price is that parts are known by their names. A layer with
# other names computes all rows, which is slower and just as exact.

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, TypeAlias

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.modeling_outputs import MoeModelOutputWithPast

from gateau_dagster.errors import GateauError
from gateau_dagster.models.loaded import LoadedModel
from gateau_dagster.models.probe import body_of

Span: TypeAlias = tuple[int, int]  # [start, stop) in a document's rows

# Children of a decoder's layer that treat every token by itself; parts with other names run on all rows.
_FEED_FORWARD = ("mlp", "feed_forward", "ffn", "block_sparse_moe")
_ATTENTION = ("self_attn", "attention", "attn")
_PROJECTIONS = ("q_proj", "o_proj", "out_proj", "dense", "c_proj")


def backbone(loaded: LoadedModel) -> torch.nn.Module:
    """Return the model without its output layer; raise GateauError if the model does not separate the two."""
    body = body_of(loaded.model)
    if body is loaded.model:
        raise _unsplittable(loaded)
    return body


@torch.no_grad()
def head(loaded: LoadedModel, states: Tensor) -> Tensor:
    """Return the logits [n, vocabulary] of hidden states [n, hidden].

    The model's own forward runs around a backbone that returns `states`. So whatever it does with logits (soft cap in
    Gemma, scales in Granite and Cohere) is done here too, without a list of architectures.
    """
    # The output layer could be called as a module. But what a model does to logits around it (caps, scales) is in its
    # forward, and differs.
    body = backbone(loaded)
    calls = 0

    def replay(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        del args, kwargs
        calls += 1
        return _Replayed(last_hidden_state=states[None])  # pyright: ignore[reportArgumentType]

    own = body.__dict__.get("forward")  # accelerate's hooks and compiled bodies are stored here
    body.forward = replay
    try:
        ids = torch.zeros((1, states.shape[0]), dtype=torch.long, device=states.device)
        logits = loaded.model(input_ids=ids, use_cache=False, return_dict=True).logits
    except (TypeError, ValueError, AttributeError, IndexError) as error:  # it needs more from its body (ProphetNet)
        raise _unsplittable(loaded) from error
    finally:
        if own is None:
            del body.forward
        else:
            body.forward = own
    if calls != 1 or logits.shape[:2] != (1, states.shape[0]):
        raise _unsplittable(loaded)
    return logits[0]


class _Replayed(MoeModelOutputWithPast):
    """A backbone's output that has hidden states only; every other field reads None."""

    def __getattr__(self, name: str) -> None:
        if name.startswith("__"):
            raise AttributeError(name)


def _unsplittable(loaded: LoadedModel) -> GateauError:
    return GateauError(
        "models.architecture",
        f"{loaded.name} ({loaded.model.config.model_type}) does not separate its output layer from its body "
        "(`base_model`): take an architecture such as Llama, Qwen or Mistral",
    )


@dataclass(frozen=True, kw_only=True)
class ReadRows:
    """The rows of a packed row [T] that are read afterwards: one span per document, counted from its start."""

    lengths: tuple[int, ...]
    spans: tuple[Span, ...]
    layer: int  # index of the last layer, the `layer_idx` of its attention
    indices: dict[torch.device, Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        assert len(self.lengths) == len(self.spans)
        assert all(0 <= start < stop <= length for length, (start, stop) in zip(self.lengths, self.spans, strict=True))

    @property
    def pays(self) -> bool:
        """Return whether some row need not be computed."""
        return sum(stop - start for start, stop in self.spans) < sum(self.lengths)

    def index(self, device: torch.device) -> Tensor:
        """Return the rows' positions in the packed row: int64 [n], copied to a device once."""
        if device not in self.indices:
            begins = [0, *torch.tensor(self.lengths).cumsum(0).tolist()]
            parts = [
                torch.arange(begin + start, begin + stop)
                for (begin, _), (start, stop) in zip(pairwise(begins), self.spans, strict=True)
            ]
            found = torch.cat(parts)
            # Copy from pinned memory, so that the copy does not wait for the GPU's queued work.
            pinned = found.pin_memory() if device.type == "cuda" else found
            self.indices[device] = pinned.to(device, non_blocking=True)
        return self.indices[device]


def decoder_layers(loaded: LoadedModel) -> Sequence[torch.nn.Module]:
    """Return the decoder's layers in order; none if it does not keep them in a list."""
    backbone(loaded)  # raises if there is none
    return layers_of(loaded.model)


def layers_of(model: PreTrainedModel) -> Sequence[torch.nn.Module]:
    """Return the decoder's layers like decoder_layers, for a model that need not be loaded."""
    count = getattr(model.config.get_text_config(decoder=True), "num_hidden_layers", None)
    parts = body_of(model).modules()
    return list(next((part for part in parts if isinstance(part, torch.nn.ModuleList) and len(part) == count), ()))


def token_wise_parts(layer: torch.nn.Module) -> list[torch.nn.Module]:
    """Return the parts of a layer that treat every token by itself, so that some rows suffice in the last layer."""
    # The projections to queries and from attention's output. A fused one makes keys, too, so it runs on all rows.
    attentions = [getattr(layer, name, None) for name in _ATTENTION]
    found = [getattr(attention, name, None) for attention in attentions for name in _PROJECTIONS]
    return [*feed_forward(layer), *(part for part in found if isinstance(part, torch.nn.Module))]


def output_projection(layer: torch.nn.Module) -> torch.nn.Module | None:
    """Return the projection from the heads' outputs to the hidden states; None if a layer has no attention of a known
    name.
    """
    attentions = [part for name in _ATTENTION if (part := getattr(layer, name, None)) is not None]
    nested = [part for attention in attentions for part in (attention, *attention.children())]
    found = (getattr(part, name, None) for part in nested for name in _PROJECTIONS[1:])
    return next((part for part in found if isinstance(part, torch.nn.Module)), None)


def narrowable_layer(loaded: LoadedModel) -> torch.nn.Module | None:
    """Return the last layer if it is found and has parts that can run on fewer rows; None otherwise."""
    layers = decoder_layers(loaded)
    return layers[-1] if layers and feed_forward(layers[-1]) else None


def read_rows(loaded: LoadedModel, lengths: tuple[int, ...], spans: Iterable[Span]) -> ReadRows | None:
    """Return the rows in the form the last layer needs; None if all are read, or the last layer cannot be narrowed."""
    if narrowable_layer(loaded) is None:
        return None
    rows = ReadRows(lengths=lengths, spans=tuple(spans), layer=len(decoder_layers(loaded)) - 1)
    return rows if rows.pays else None


@contextmanager
def only_read_rows(loaded: LoadedModel, rows: ReadRows | None) -> Iterator[None]:
    """Make the token-wise parts of the last layer return zeros for unread rows, inside the context."""
    with ExitStack() as hooks:
        layer = None if rows is None else narrowable_layer(loaded)
        if rows is not None and layer is not None:
            for part in token_wise_parts(layer):
                _narrow(part, rows, hooks)
        yield


def feed_forward(layer: torch.nn.Module) -> list[torch.nn.Module]:
    """Return a layer's feed-forward parts of a known name."""
    return [part for name in _FEED_FORWARD if isinstance(part := getattr(layer, name, None), torch.nn.Module)]


def _narrow(part: torch.nn.Module, rows: ReadRows, hooks: ExitStack) -> None:
    """Run `part` on the rows [.., n, d] of its input [.., T, d], and put its output back among zeros [.., T, d']."""
    total = sum(rows.lengths)

    def before(_: torch.nn.Module, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        states, *rest = arguments
        return states.index_select(-2, rows.index(states.device)), *rest

    def after(_: torch.nn.Module, __: tuple[Any, ...], output: Any) -> Any:
        states, *rest = output if isinstance(output, tuple) else (output,)  # mixtures of experts also return logits
        # Zeros, so that the residual sums of unread rows are defined. Nobody reads them.
        whole = states.new_zeros(*states.shape[:-2], total, states.shape[-1])
        whole.index_copy_(-2, rows.index(states.device), states)
        return (whole, *rest) if isinstance(output, tuple) else whole

    for handle in (part.register_forward_pre_hook(before), part.register_forward_hook(after)):
        hooks.callback(handle.remove)
