"""Several documents through the model as one row, without padding and without seeing one another."""

from collections.abc import Sequence
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from transformers import PreTrainedModel

from gateau_dagster.errors import GateauError
from gateau_dagster.models.last_layers import Span, backbone, narrowable_layer, read_rows
from gateau_dagster.models.loading import LoadedModel
from gateau_dagster.models.mask_pattern import UnknownAttentionError
from gateau_dagster.models.memory import is_out_of_memory
from gateau_dagster.models.probe import ROUNDING
from gateau_dagster.models.scoring_attention import Observer, document_attention

_PROBE = 6  # tokens of each of a probe's documents

_packable: WeakKeyDictionary[PreTrainedModel, bool] = WeakKeyDictionary()
_narrowable: WeakKeyDictionary[PreTrainedModel, bool] = WeakKeyDictionary()


@torch.no_grad()
def packed_states(
    loaded: LoadedModel,
    documents: Sequence[Sequence[int]],
    observe: Observer | None = None,
    read: Sequence[Span] | None = None,
) -> tuple[Tensor, list[int]]:
    """Last hidden states [T, hidden] of the documents in one row of T tokens, and where each of them begins in it.

    Positions count from 0 in each document, attention stays within it. Documents of one length stand side by side.
    `read`: the rows of each document that count; others may come out as anything. `observe`: see document_attention.
    Raises UnknownAttentionError when this model's attention cannot be replaced.
    """
    spans = [(0, len(document)) for document in documents] if read is None else read
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
        # With a mask of ones transformers does not look for documents in the positions, which would wait for a GPU.
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
    """Last hidden states [T, hidden] of one document with the model's own attention."""
    ids = token_ids(loaded, document)
    return backbone(loaded)(input_ids=ids, use_cache=False, return_dict=True).last_hidden_state[0]


def packs_documents(loaded: LoadedModel) -> bool:
    """Whether documents packed into one row come out as each would alone: tried once for each loaded model.

    Not so where a layer carries a state from token to token (Mamba, convolutions), positions cannot be given, or the
    attention is of a kind not known here; such a model gets one document at a time.
    """
    model = loaded.model
    if model not in _packable:
        _packable[model] = getattr(model, "_supports_attention_backend", False) and _probe(loaded)
    return _packable[model]


def narrows_last_layer(loaded: LoadedModel) -> bool:
    """Whether the last layer gives the same for some rows only: tried once for each loaded model that packs."""
    model = loaded.model
    if model not in _narrowable:
        _narrowable[model] = narrowable_layer(loaded) is not None and _probe_narrow(loaded)
    return _narrowable[model]


def _probe_narrow(loaded: LoadedModel) -> bool:
    """Whether rows of two documents come out as they do when all are computed, of each from another place."""
    size = min(vocabulary(loaded), 2 * _PROBE) // 2
    documents = [tuple(range(start * size, (start + 1) * size)) for start in range(2)]
    spans = [(size // 2, size), (0, size - 1)]
    try:
        whole, starts = packed_states(loaded, documents)
        some, places = packed_states(loaded, documents, read=spans)
    except (UnknownAttentionError, TypeError, ValueError, AttributeError, IndexError, RuntimeError) as error:
        if is_out_of_memory(error):
            raise  # says nothing of the model
        return False  # its parts want something else than [1, n, d]
    rounding = ROUNDING[whole.dtype]
    expected, got = (
        torch.cat([states[begin + start : begin + stop] for begin, (start, stop) in zip(begins, spans, strict=True)])
        for states, begins in ((whole, starts), (some, places))
    )
    return bool(((got - expected).norm(dim=-1) <= rounding * expected.norm(dim=-1)).all())


def _probe(loaded: LoadedModel) -> bool:
    """Whether a document is the same behind another one, whichever that is, and alone."""
    size = min(vocabulary(loaded), 3 * _PROBE) // 3
    first, other, document = (tuple(range(start * size, (start + 1) * size)) for start in range(3))
    try:
        behind = [packed_states(loaded, [one, document])[0][size:] for one in (first, other)]
    except (UnknownAttentionError, TypeError, AttributeError):  # the latter: it does arithmetic with its mask
        return False
    alone = lone_states(loaded, document)
    scale = alone.norm(dim=-1)
    rounding = ROUNDING[alone.dtype]
    leaked, differs = ((state - behind[0]).norm(dim=-1) for state in (behind[1], alone))
    # Rows that do not see one another differ by nothing: the same products of the same shapes.
    return bool((leaked <= rounding / 10 * scale).all() and (differs <= rounding * scale).all())


def vocabulary(loaded: LoadedModel) -> int:
    """Token ids that the model knows."""
    weight = loaded.model.get_input_embeddings().weight
    assert isinstance(weight, Tensor)
    return weight.shape[0]


def token_ids(loaded: LoadedModel, tokens: Sequence[int]) -> Tensor:
    """[1, T] on the model's device; raises GateauError for a token that the model does not know."""
    ids = torch.tensor(tokens)
    largest, known = int(ids.max()), vocabulary(loaded)
    if largest >= known:
        raise GateauError(
            f"{loaded.name}: the tokenizer gave token {largest}, but the model knows {known}: tokenizer and "
            "weights do not belong together"
        )
    return _moved(ids[None], loaded.device)


def _moved(tensor: Tensor, device: torch.device) -> Tensor:
    """A copy that does not wait for a GPU to finish what it is doing."""
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)
