"""Train on documents side by side in one row, each attending only to itself, whatever its positions.

transformers' own sdpa, eager and flex attention treat a jump in `position_ids` as the border of a document. They cut
the attention there. SkipAlign puts such jumps into documents on purpose. Here the borders are those that the batch
names in `cu_seq_lens_q`, and positions only rotate queries and keys.
"""

from functools import partial
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel

from gateau_dagster.errors import GateauError
from gateau_dagster.models.attention_kernels import attend_documents, attend_in_blocks, attention_spec
from gateau_dagster.models.mask_pattern import UnknownAttentionError, describe_mask, known_pattern, why_failed
from gateau_dagster.models.probe import ROUNDING, body_of, probe_ids, probed_states

NAME = "gateau_training_documents"  # names the attention function and the mask function in transformers' registries
_POSITIONS = (0, 1, 2, 7, 8, 9)  # of a probe's document: SkipAlign's jumps are not borders


def attend_within_documents(model: PreTrainedModel) -> None:
    """Let `model` train on rows of several documents, in which a token sees only earlier tokens of its document.

    After this call every batch is one row of T tokens. It has `input_ids` and `position_ids` int64 [1, T], and
    `cu_seq_lens_q` int32 [documents + 1], which holds 0, then the end of each document. The batch may also hold
    `cu_seq_lens_k`, `max_length_q` and `max_length_k` with the same borders, as FlashAttention needs them. Sliding
    windows and chunks count a document's tokens, as the model's own attention does, not positions.

    On CUDA in half precision, the variable-length FlashAttention kernel computes this. Elsewhere it is causal sdpa for
    all neighbours of one length at once, in memory linear in the row's length. Soft caps and attention sinks are
    computed in blocks of rows. It works under gradient checkpointing, DDP and DeepSpeed. Under ZeRO-3 all ranks must
    call it.

    Raises:
        GateauError: a document in such a row does not come out as it does alone. Either a layer carries a state from
            token to token (Mamba, convolutions, linear attention), or the kind of attention is unknown.
    """
    if model.config._attn_implementation == NAME:
        return
    if body_of(model) is model or not getattr(model, "_supports_attention_backend", False):
        raise _unsupported(model, "its code does not use transformers' attention interface")
    own = model.config._attn_implementation or "sdpa"
    alone = _lone_states(model)
    if (
        not _difference(_plain_states(model, counted=True), _plain_states(model, counted=False))
        <= ROUNDING[alone.dtype]
    ):
        raise _unsupported(model, "it does not count a document's positions from 0")
    handle = body_of(model).register_forward_pre_hook(_name_documents, with_kwargs=True)
    model.set_attn_implementation(NAME)
    reason = _why_not(model, alone)
    if reason is not None:
        handle.remove()
        model.set_attn_implementation(own)
        raise _unsupported(model, reason)


def _why_not(model: PreTrainedModel, alone: Tensor) -> str | None:
    """Return why documents in one row do not come out as they do alone; None if they do."""
    if model.config._attn_implementation != NAME:
        return "its attention function cannot be replaced"
    try:
        behind = [_packed_states(model, index) for index in range(2)]
    except UnknownAttentionError as error:
        return str(error)
    except (TypeError, AttributeError) as error:
        return why_failed(error, "on such a row")
    # Rows that do not see one another are equal: they are the same products of the same shapes.
    if not _difference(behind[1], behind[0]) <= ROUNDING[alone.dtype] / 10:
        return "a document in a row sees the one before it"
    if not _difference(behind[0], alone) <= ROUNDING[alone.dtype]:
        return "a document in a row comes out otherwise than alone"
    return None


def _lone_states(model: PreTrainedModel) -> Tensor:
    """Return the last hidden states [6, hidden] of the probe's last document, alone, with positions that skip."""
    size = len(_POSITIONS)
    ids = probe_ids(model, 3 * size)[None, 2 * size :]
    positions = torch.tensor([_POSITIONS], device=ids.device)
    return probed_states(model, input_ids=ids, position_ids=positions, attention_mask=torch.ones_like(ids))


def _plain_states(model: PreTrainedModel, *, counted: bool) -> Tensor:
    # `counted`: pass positions from 0, instead of leaving them to the model. A model that counts otherwise differs.
    ids = probe_ids(model, 2 * len(_POSITIONS))[None, len(_POSITIONS) :]
    positions = {"position_ids": torch.arange(len(_POSITIONS), device=ids.device)[None]} if counted else {}
    return probed_states(model, input_ids=ids, attention_mask=torch.ones_like(ids), **positions)


def _packed_states(model: PreTrainedModel, behind: int) -> Tensor:
    """Return the states of `_lone_states`, computed in one row behind one of two other documents."""
    size = len(_POSITIONS)
    first, other, document = probe_ids(model, 3 * size).split(size)
    ids = torch.cat([(first, other)[behind], document])[None]
    borders = torch.tensor([0, size, 2 * size], dtype=torch.int32, device=ids.device)
    states = probed_states(
        model,
        input_ids=ids,
        position_ids=torch.tensor([_POSITIONS * 2], device=ids.device),
        cu_seq_lens_q=borders,
        cu_seq_lens_k=borders,
        max_length_q=size,
        max_length_k=size,
    )
    return states[size:]


def _difference(states: Tensor, expected: Tensor) -> float:
    return float(((states - expected).norm(dim=-1) / expected.norm(dim=-1)).max())


def _unsupported(model: PreTrainedModel, reason: str) -> GateauError:
    return GateauError(
        "training.architecture",
        f"{type(model).__name__} (model type {model.config.model_type}) cannot be trained on documents packed "
        f"into one row, nor with skipped positions: {reason}. Set training.batching to padded or sorted and "
        "remove training.skip, or train an architecture such as Llama, Qwen or Mistral.",
    )


def _name_documents(module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Add the documents' lengths as Python numbers before the model's body runs, once for all layers."""
    del module
    borders = kwargs.get("cu_seq_lens_q")
    tokens = args[0] if args else kwargs.get("input_ids")
    if tokens is None:
        tokens = kwargs.get("inputs_embeds")
    if borders is None or tokens is None:
        raise ValueError("a batch for attention within documents names input_ids and cu_seq_lens_q")
    edges = borders.tolist()  # on CUDA the only synchronisation of a forward pass
    lengths = tuple(end - begin for begin, end in pairwise(edges))
    shape = tuple(tokens.shape[:2])
    # A rank that shares the row has one of its equal parts. `attend_row` checks that it gets the whole.
    if edges[0] != 0 or shape[0] != 1 or edges[-1] % shape[1] or min(lengths) < 1:
        raise ValueError(f"documents that end at {edges[1:]} do not make up a batch of {shape} tokens")
    # With a mask of ones, transformers does not look for borders in the positions.
    mask = torch.ones(shape, dtype=torch.int64, device=tokens.device)
    return args, {**kwargs, "attention_mask": mask, "document_lengths": lengths}


@torch.compiler.disable  # it reads lengths in Python
def attend_row(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: object,
    *,
    scaling: float | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    dropout: float = 0.0,
    document_lengths: tuple[int, ...] | None = None,
    cu_seq_lens_q: Tensor | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Attend from query [1, H, T, D] to key [1, H_kv, T, D] and value [1, H_kv, T, D_v]; return [1, T, H, D_v].

    The attention function of transformers' registry, for a whole row.

    Raises:
        UnknownAttentionError: the model does not name the documents, or its mask is not known.
        GateauError: the model drops attention weights.
    """
    if document_lengths is None or cu_seq_lens_q is None:
        raise UnknownAttentionError("it does not tell its layers where documents begin")
    if not query.shape[2] == key.shape[2] == sum(document_lengths):
        raise UnknownAttentionError("it attends to more or less than the row's tokens")
    pattern = known_pattern(attention_mask, kwargs)
    if dropout:
        raise GateauError(
            "training.attention_dropout",
            f"{type(module).__name__} drops {dropout} of its attention weights in training, which attention "
            "within documents does not support. Set the model's attention dropout to 0 in its config.json.",
        )
    how = attention_spec(query, pattern, scaling=scaling, softcap=softcap, sinks=s_aux)
    q, k, v = query[0], key[0], value[0]
    kind = query.device.type
    if torch.is_autocast_enabled(kind):  # rotating leaves queries and keys in float32, and no kernel mixes types
        q, k, v = (tensor.to(torch.get_autocast_dtype(kind)) for tensor in (q, k, v))
    pieces = pattern.pieces(document_lengths)
    if softcap is not None or s_aux is not None or v.shape[-1] > q.shape[-1]:
        return attend_in_blocks(q, k, v, pieces, how)[None].contiguous(), None
    starts = partial(_starts, documents=document_lengths, borders=cu_seq_lens_q)
    return attend_documents(q, k, v, pieces, how, starts)[None].contiguous(), None


def _starts(pieces: tuple[int, ...], device: torch.device, *, documents: tuple[int, ...], borders: Tensor) -> Tensor:
    # The batch has the documents' borders on the device already; copying others there costs a transfer.
    if pieces == documents:
        return borders.to(device, torch.int32)
    return torch.tensor((0, *pieces)).cumsum(0).to(device, torch.int32)


AttentionInterface.register(NAME, attend_row)
AttentionMaskInterface.register(NAME, describe_mask)  # pyright: ignore[reportArgumentType]
