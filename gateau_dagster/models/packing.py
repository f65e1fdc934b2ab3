"""Run several documents through the model as one row, without padding and without a T x T mask.

An attention function registered with transformers replaces the model's own inside `document_attention`.
"""

# Why rows are packed, what it costs, and when another way is better:
#
# - Padding is the usual way, and works with every model. But a batch of real lengths is mostly padding, as measured in
#   docs/evidence/benchmarks.md. A packed row has none.
# - transformers packs rows by their positions, too. With sdpa it then builds a mask of T x T, which is 4 GiB at 64k
#   tokens. It also takes any jump in the positions for a border, silently. Here the lengths are known, and no mask
#   exists: a layer gets the pattern of its mask, and calls a kernel for each run of equal lengths, or one for all.
# - The price is that the model's attention has to be replaced exactly. A list of architectures would be out of date
#   with each release of transformers. So each loaded model is tried out once, in a few passes of a few tokens.
# - A model that fails the trial (Mamba, convolutions, unknown masks) gets one prompt per pass. That is exact and
#   slower, and for a single long prompt it loses only what the last layer could leave out.

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, TypeAlias
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from transformers import AttentionInterface, PreTrainedModel

from gateau_dagster.errors import GateauError
from gateau_dagster.models.attention_kernels import AttentionSpec, attend_documents, attention_spec
from gateau_dagster.models.last_layers import ReadRows, Span, backbone, narrowable_layer, only_read_rows, read_rows
from gateau_dagster.models.loaded import LoadedModel
from gateau_dagster.models.mask_pattern import NAME, MaskPattern, UnknownAttentionError, known_pattern
from gateau_dagster.models.memory import is_out_of_memory
from gateau_dagster.models.probe import ROUNDING

Observer: TypeAlias = Callable[[Tensor, Tensor, MaskPattern, AttentionSpec], None]


@dataclass(frozen=True, kw_only=True)
class _Row:
    """The packed row that the model is running."""

    lengths: tuple[int, ...]  # tokens of each document
    observe: Observer | None
    read: ReadRows | None = None
    boundaries: dict[tuple[torch.device, tuple[int, ...]], Tensor] = field(default_factory=dict)

    def cu_seq_lens(self, pieces: tuple[int, ...], device: torch.device) -> Tensor:
        """Return where each piece begins, and where the last ends: int32 [pieces + 1], copied to a device once."""
        if (device, pieces) not in self.boundaries:
            ends = torch.tensor((0, *pieces)).cumsum(0).to(torch.int32)
            self.boundaries[device, pieces] = ends.to(device, non_blocking=True)
        return self.boundaries[device, pieces]

    def spans(self, module: torch.nn.Module, pattern: MaskPattern) -> tuple[Span, ...] | None:
        """Return the rows of each document that this layer has to compute; None for all."""
        if self.read is None or pattern.chunk is not None or getattr(module, "layer_idx", None) != self.read.layer:
            return None
        return self.read.spans


# transformers calls the attention function without an argument for our state.
_running: ContextVar[_Row | None] = ContextVar("_running", default=None)


@contextmanager
def document_attention(
    loaded: LoadedModel, lengths: tuple[int, ...], observe: Observer | None = None, read: ReadRows | None = None
) -> Iterator[None]:
    """Run rows packed from documents of these lengths inside the context; restore the model's own attention afterwards.

    `observe` receives query [H, T, D] and key [H_kv, T, D] of every layer. With `read`, the last layer's queries and
    output are defined in these rows only. Raises UnknownAttentionError, here or from the model, if its attention cannot
    be replaced exactly.
    """
    # The model's own attention comes back afterwards, since the same object is used for passes of other kinds.
    own = loaded.model.config._attn_implementation or "sdpa"
    loaded.model.set_attn_implementation(NAME)
    if loaded.model.config._attn_implementation != NAME:
        loaded.model.set_attn_implementation(own)  # some of its parts may have accepted ours
        raise UnknownAttentionError("its attention function cannot be replaced")
    token = _running.set(_Row(lengths=lengths, observe=observe, read=read))
    try:
        with only_read_rows(loaded, read):
            yield
    finally:
        _running.reset(token)
        loaded.model.set_attn_implementation(own)


@torch.compiler.disable  # it reads lengths in Python
def _attend(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: object,
    *,
    scaling: float | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Attend from query [1, H, T, D] to key [1, H_kv, T, D] and value [1, H_kv, T, D_v]; return [1, T, H, D_v]."""
    row = _running.get()
    assert row is not None, "only inside document_attention"
    if query.shape[0] != 1 or not query.shape[2] == key.shape[2] == sum(row.lengths):
        raise UnknownAttentionError("it attends to more or less than the prompt's tokens")
    pattern = known_pattern(attention_mask, kwargs)
    how = attention_spec(query, pattern, scaling=scaling, softcap=softcap, sinks=s_aux)
    if row.observe is not None:
        row.observe(query[0], key[0], pattern, how)
    pieces = pattern.pieces(row.lengths)
    spans = row.spans(module, pattern)
    out = attend_documents(query[0], key[0], value[0], pieces, how, row.cu_seq_lens, spans)
    return out[None].contiguous(), None  # like transformers' own functions: some models take a view of it


AttentionInterface.register(NAME, _attend)


_PROBE = 6  # tokens per document of a probe

_packable: WeakKeyDictionary[PreTrainedModel, bool] = WeakKeyDictionary()
_narrowable: WeakKeyDictionary[PreTrainedModel, bool] = WeakKeyDictionary()


@torch.no_grad()
def packed_states(
    loaded: LoadedModel,
    documents: Sequence[Sequence[int]],
    observe: Observer | None = None,
    read: Sequence[Span] | None = None,
) -> tuple[Tensor, list[int]]:
    """Return the last hidden states [T, hidden] of the documents in one row of T tokens, and where each begins in it.

    Positions count from 0 in each document, and attention stays within it. Documents of one length are neighbours.
    `read`: the rows of each document that are read; others are undefined. `observe`: see document_attention. Raises
    UnknownAttentionError if this model's attention cannot be replaced.
    """
    spans = [(0, len(document)) for document in documents] if read is None else read
    # Documents of one length become neighbours: then one call of a kernel serves them all, where no kernel takes mixed
    # lengths.
    order = sorted(range(len(documents)), key=lambda index: (-len(documents[index]), spans[index]))
    lengths = tuple(len(documents[index]) for index in order)
    starts = [0] * len(documents)
    position = 0
    for index, length in zip(order, lengths, strict=True):
        starts[index] = position
        position += length
    ids = token_ids(loaded, [token for index in order for token in documents[index]])
    positions = torch.cat([torch.arange(length) for length in lengths])
    rows = None if read is None else read_rows(loaded, lengths, [spans[index] for index in order])
    with document_attention(loaded, lengths, observe, rows):
        # With a mask of ones, transformers does not look for documents in the positions, which would wait for a GPU.
        states = backbone(loaded)(
            input_ids=ids,
            position_ids=_moved(positions[None], loaded.device),
            attention_mask=torch.ones_like(ids),
            use_cache=False,
            return_dict=True,
        ).last_hidden_state
    return states[0], starts


@torch.no_grad()
def lone_states(loaded: LoadedModel, document: Sequence[int]) -> Tensor:
    """Return the last hidden states [T, hidden] of one document with the model's own attention."""
    ids = token_ids(loaded, document)
    return backbone(loaded)(input_ids=ids, use_cache=False, return_dict=True).last_hidden_state[0]


def packs_documents(loaded: LoadedModel) -> bool:
    """Return whether documents packed into one row come out as each would alone; probed once per loaded model.

    They do not if a layer carries a state from token to token (Mamba, convolutions). Nor do they if positions cannot be
    passed, or the kind of attention is unknown. Such a model gets one document at a time.
    """
    model = loaded.model
    if model not in _packable:
        _packable[model] = getattr(model, "_supports_attention_backend", False) and _probe(loaded)
    return _packable[model]


def narrows_last_layer(loaded: LoadedModel) -> bool:
    """Return whether the last layer computes the same for some rows only; probed once per loaded model that packs."""
    model = loaded.model
    if model not in _narrowable:
        _narrowable[model] = narrowable_layer(loaded) is not None and _probe_narrow(loaded)
    return _narrowable[model]


def _probe_narrow(loaded: LoadedModel) -> bool:
    """Return whether some rows of two documents, at different places in each, come out as when all are computed."""
    size = min(vocabulary(loaded), 2 * _PROBE) // 2
    documents = [tuple(range(start * size, (start + 1) * size)) for start in range(2)]
    spans = [(size // 2, size), (0, size - 1)]
    try:
        whole, starts = packed_states(loaded, documents)
        some, places = packed_states(loaded, documents, read=spans)
    except (UnknownAttentionError, TypeError, ValueError, AttributeError, IndexError, RuntimeError) as error:
        if is_out_of_memory(error):
            raise  # it does not depend on the model
        return False  # its parts need another shape than [1, n, d]
    rounding = ROUNDING[whole.dtype]
    expected, got = (
        torch.cat([states[begin + start : begin + stop] for begin, (start, stop) in zip(begins, spans, strict=True)])
        for states, begins in ((whole, starts), (some, places))
    )
    return bool(((got - expected).norm(dim=-1) <= rounding * expected.norm(dim=-1)).all())


def _probe(loaded: LoadedModel) -> bool:
    """Return whether a document comes out the same behind either of two others, and alone."""
    size = min(vocabulary(loaded), 3 * _PROBE) // 3
    first, other, document = (tuple(range(start * size, (start + 1) * size)) for start in range(3))
    try:
        # Behind two different documents: a model that looks across the border gives two results. Compared with `alone`,
        # it also shows other mistakes, such as wrong positions.
        behind = [packed_states(loaded, [one, document])[0][size:] for one in (first, other)]
    except (UnknownAttentionError, TypeError, AttributeError):  # the latter two: it does arithmetic with its mask
        return False
    alone = lone_states(loaded, document)
    scale = alone.norm(dim=-1)
    rounding = ROUNDING[alone.dtype]
    leaked, differs = ((state - behind[0]).norm(dim=-1) for state in (behind[1], alone))
    # Rows that do not see one another are equal: they are the same products of the same shapes.
    return bool((leaked <= rounding / 10 * scale).all() and (differs <= rounding * scale).all())


def vocabulary(loaded: LoadedModel) -> int:
    """Return the number of token ids that the model knows."""
    weight = loaded.model.get_input_embeddings().weight
    assert isinstance(weight, Tensor)
    return weight.shape[0]


def token_ids(loaded: LoadedModel, tokens: Sequence[int]) -> Tensor:
    """Return tokens as [1, T] on the model's device; raise GateauError for a token that the model does not know."""
    ids = torch.tensor(tokens)
    largest, known = int(ids.max()), vocabulary(loaded)
    if largest >= known:
        raise GateauError(
            "models.vocabulary",
            f"{loaded.name}: the tokenizer made token {largest}, but the model has {known}: use the tokenizer "
            "that belongs to the weights",
        )
    return _moved(ids[None], loaded.device)


def _moved(tensor: Tensor, device: torch.device) -> Tensor:
    # Pinned memory: a copy from other memory would wait for the GPU's queued work.
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)
