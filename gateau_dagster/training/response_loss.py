"""Compute a causal language model's loss from labelled rows, in chunks, so that all logits never exist at once.

Everything between the hidden states and the loss happens inside one call of the output layer, for any number of chunks.
Under ZeRO-3, every rank therefore gathers the layer once per pass, for any number of rows.

The gradients are computed in the forward pass, while a chunk's logits exist, and are only scaled in the backward pass.
This is a quarter to a third faster than recomputing the logits, at equal memory: in both cases the weight's gradient
exists from the loss on.
"""

# What it costs: a chunk has at most 2^27 logits on CUDA, 512 MiB in float32, or _LEAST_ROWS rows. Tokens without loss,
# which are most of a long sample, never meet the output layer. In the benchmark, memory is 1.7 % of that of full logits
# (docs/evidence/benchmarks.md).
#
# When another way is better: torch's `linear_cross_entropy` has no weights per row and no soft cap. Liger's fused loss
# needs a GPU. `chunked_loss: false` is right for a model that computes its logits in another way.

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from types import MethodType
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.modeling_outputs import CausalLMOutputWithPast

from gateau_dagster.errors import GateauError
from gateau_dagster.models.mask_pattern import UnknownAttentionError
from gateau_dagster.models.probe import ROUNDING, body_of, probe_ids, probing
from gateau_dagster.training.encode import IGNORED

# Logits per chunk: on a CPU as many as a cache holds, on CUDA enough to keep the GPU busy. A chunk has at least
# _LEAST_ROWS rows, because each chunk reads the whole weight.
_ELEMENTS = {"cpu": 2**22, "cuda": 2**27}
_LEAST_ROWS = 128


@dataclass(frozen=True, kw_only=True)
class LogitChange:
    """The change of logits by a model: softcap · tanh(scale · logits / softcap), or scale · logits without softcap."""

    scale: float = 1.0
    softcap: float | None = None

    def __call__(self, logits: Tensor) -> Tensor:
        """Change logits [n, V] in place."""
        if self.scale != 1:
            logits *= self.scale
        return logits if self.softcap is None else logits.div_(self.softcap).tanh_().mul_(self.softcap)

    def slope(self, changed: Tensor) -> Tensor | float:
        """Return the derivative by the logits at the changed logits `changed`; [n, V] with softcap, else a float."""
        return self.scale if self.softcap is None else (1 - (changed / self.softcap) ** 2) * self.scale


def summed_nll(
    states: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    weights: Tensor | None = None,
    *,
    change: LogitChange | None = None,
    chunk: int | None = None,
) -> Tensor:
    """Return Σ weights_i · -log softmax(change(states_i weightᵀ + bias))[targets_i]: a scalar, float32 or better.

    Args:
        states: [n, hidden]; n may be 0.
        weight: [V, hidden]; `bias` [V].
        targets: int64 [n].
        weights: [n], without gradients; None: 1 for every row.
        change: the model's change of its logits; None: no change.
        chunk: the number of rows computed at a time; None: see `chunk_rows`.

    Products are in the dtype of autocast if it is on, otherwise in that of `weight`. The softmax, the sums, and the
    sums of gradients over chunks are in float32 or better. The result can be differentiated once.
    """
    kind = states.device.type
    dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else weight.dtype
    rows = chunk or chunk_rows(kind, weight.shape[0])
    learn = torch.is_grad_enabled()
    total = _SummedNll.apply(states, weight, bias, targets, weights, change or LogitChange(), rows, dtype, learn)
    assert isinstance(total, Tensor)
    return total


def chunk_rows(device: str, vocabulary: int) -> int:
    """Return the number of rows whose logits exist at a time on a device of this type."""
    return max(_LEAST_ROWS, _ELEMENTS.get(device, _ELEMENTS["cpu"]) // vocabulary)


class _SummedNll(torch.autograd.Function):
    """The sum, and its gradients by states, weight and bias."""

    @staticmethod
    def forward(
        ctx: Any,
        states: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        weights: Tensor | None,
        change: LogitChange,
        rows: int,
        dtype: torch.dtype,
        learn: bool,
    ) -> Tensor:
        exact = torch.promote_types(dtype, torch.float32)
        # Allocate the requested gradients; they stay zero without rows.
        by = [
            torch.zeros_like(tensor, dtype=exact) if learn and tensor is not None and wanted else None
            for tensor, wanted in zip((states, weight, bias), ctx.needs_input_grad[:3], strict=True)
        ]
        total = torch.zeros((), dtype=exact, device=states.device)
        with torch.autocast(states.device.type, enabled=False):
            matrix = weight.to(dtype)
            offset = None if bias is None else bias.to(dtype)
            for begin in range(0, len(targets), rows):
                some = slice(begin, begin + rows)
                x = states[some].to(dtype)
                logits = change(torch.nn.functional.linear(x, matrix, offset).to(exact))
                scale = None if weights is None else weights[some].to(exact)
                norm = logits.logsumexp(dim=-1)
                nll = norm - logits.gather(1, targets[some, None])[:, 0]
                total += nll.sum() if scale is None else (nll * scale).sum()
                if any(gradient is not None for gradient in by):
                    inner = _by_logits(logits, norm, targets[some], scale, change).to(dtype)
                    _add_gradients(by, some, inner, x, matrix)
        ctx.save_for_backward(*by)
        ctx.dtypes = [None if tensor is None else tensor.dtype for tensor in (states, weight, bias)]
        return total

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *gradients: Any) -> Any:
        by = (
            None if gradient is None else gradient.mul_(gradients[0]).to(dtype)
            for gradient, dtype in zip(ctx.saved_tensors, ctx.dtypes, strict=True)
        )
        return *by, None, None, None, None, None, None


def _by_logits(changed: Tensor, norm: Tensor, targets: Tensor, scale: Tensor | None, change: LogitChange) -> Tensor:
    """Return the gradient [n, V] of Σ scale · nll by the logits before the change; overwrites `changed`."""
    slope = change.slope(changed)
    # In place: a second tensor of this size would double the memory of a chunk.
    gradient = changed.sub_(norm[:, None]).exp_()
    gradient[torch.arange(len(targets), device=targets.device), targets] -= 1
    if scale is not None:
        gradient *= scale[:, None]
    return gradient if isinstance(slope, float) and slope == 1 else gradient.mul_(slope)


def _add_gradients(by: list[Tensor | None], some: slice, inner: Tensor, x: Tensor, matrix: Tensor) -> None:
    """Add a chunk's part to the gradients by states, weight and bias; `inner` [c, V] is the gradient by its logits."""
    by_states, by_weight, by_bias = by
    if by_states is not None:
        by_states[some] = inner @ matrix
    if by_weight is not None:
        if by_weight.dtype == inner.dtype:
            by_weight.addmm_(inner.t(), x)
        else:
            by_weight += inner.t() @ x
    if by_bias is not None:
        by_bias += inner.sum(dim=0, dtype=by_bias.dtype)


_PROBE = 8  # tokens of the probe's document
_LARGE = 30.0  # the probe's largest logit, at which a soft cap shows


def use_chunked_loss(model: PreTrainedModel, *, chunk: int | None = None) -> None:
    """Let `model(**inputs, labels=...)` return the loss of the labelled tokens and no logits.

    With `labels` int64 [B, T] (-100: no loss), label t is predicted from the tokens before it. The loss

        loss = Σ weights_t · -log P(label_t) / num_items_in_batch

    is a float32 scalar (float64 for a float64 model). `weights` float32 [B, T], which LongAlign's loss weighting needs,
    is 1 by default. Without `num_items_in_batch`, the sum is divided by the number of labels in this batch. If all
    labels are -100, the loss is 0, with gradients of 0 for every parameter. A call without labels is unchanged.

    A part of a sequence has `shift_labels` and `shift_weights` instead: label t is predicted from token t and earlier
    ones. The last label may be a token of the next part.

    It supports tied embeddings, a bias, frozen or not, Gemma's final soft cap, and Granite's and Cohere's logit scales.

    Args:
        model: a causal language model of transformers, or one about to be wrapped by peft, DDP or DeepSpeed.
        chunk: the number of rows whose logits exist at a time; None: see `chunk_rows`.

    Raises:
        GateauError: the model changes its logits in another way or adds to the loss, or its output layer is not a plain
            linear layer.

    The function probes the model on a few tokens, so under ZeRO-3 all ranks must call it.
    """
    assert chunk is None or chunk > 0
    head = model.get_output_embeddings()
    if not isinstance(head, torch.nn.Linear) or type(head).forward is not torch.nn.Linear.forward:
        raise _unsupported(model, "its output layer is no plain linear one")
    if body_of(model) is model:
        raise _unsupported(model, "its output layer is not apart from its body")
    if getattr(model.config.get_text_config(decoder=True), "output_router_logits", False):
        raise _unsupported(model, "output_router_logits adds a term to its loss; set it to false in config.json")
    head.forward = MethodType(partial(_head_forward, change=_logit_change(model), chunk=chunk), head)
    model.forward = MethodType(_forward, model)
    try:
        reason = _why_not(model)
    except UnknownAttentionError as error:
        reason = str(error)
    if reason is not None:
        del model.forward, head.forward
        raise _unsupported(model, reason)


def _forward(
    self: PreTrainedModel,
    input_ids: Tensor | None = None,
    labels: Tensor | None = None,
    weights: Tensor | None = None,
    num_items_in_batch: Tensor | int | None = None,
    shift_labels: Tensor | None = None,
    shift_weights: Tensor | None = None,
    **kwargs: Any,
) -> Any:
    """Replace the forward method of the model."""
    if labels is not None:
        shift_labels = torch.nn.functional.pad(labels[:, 1:], (0, 1), value=IGNORED)
        shift_weights = None if weights is None else torch.nn.functional.pad(weights[:, 1:], (0, 1))
    if shift_labels is None:
        return type(self).forward(self, input_ids=input_ids, **kwargs)
    head = self.get_output_embeddings()
    if head is None or "forward" not in vars(head):
        raise _unsupported(self, "its output layer was exchanged since, for example by LoRA on lm_head")
    kwargs |= {"use_cache": False, "return_dict": True}
    states = body_of(self)(input_ids=input_ids, **kwargs).last_hidden_state  # [B, T, hidden]
    targets = shift_labels.reshape(-1)
    rows = (targets != IGNORED).nonzero()[:, 0]
    total = head(
        states.reshape(-1, states.shape[-1])[rows],
        targets[rows],
        None if shift_weights is None else shift_weights.reshape(-1)[rows],
    )
    if num_items_in_batch is None:
        num_items_in_batch = max(1, len(rows))
    elif isinstance(num_items_in_batch, Tensor):
        num_items_in_batch = num_items_in_batch.to(total.device)
    return CausalLMOutputWithPast(loss=total / num_items_in_batch)  # pyright: ignore[reportArgumentType]


def _head_forward(
    self: torch.nn.Linear,
    states: Tensor,
    targets: Tensor | None = None,
    weights: Tensor | None = None,
    *,
    change: LogitChange,
    chunk: int | None,
) -> Tensor:
    # Loss and logits are one call of the layer, so that ZeRO-3 gathers its weight once.
    if targets is None:
        return type(self).forward(self, states)
    return summed_nll(states, self.weight, self.bias, targets, weights, change=change, chunk=chunk)


def _logit_change(model: PreTrainedModel) -> LogitChange:
    """Return the change of logits that the model's configuration declares."""
    config = model.config.get_text_config(decoder=True)
    scale = 1.0
    if isinstance(divisor := getattr(config, "logits_scaling", None), float | int):  # Granite
        scale /= divisor
    if isinstance(factor := getattr(config, "logit_scale", None), float | int):  # Cohere
        scale *= factor
    return LogitChange(scale=scale, softcap=getattr(config, "final_logit_softcapping", None))


def _why_not(model: PreTrainedModel) -> str | None:
    """Return why the chunked loss differs from that of the model's original forward; None if both are equal."""
    ids = probe_ids(model, _PROBE)[None]
    borders = torch.tensor([0, _PROBE], dtype=torch.int32, device=ids.device)
    batch = {"input_ids": ids, "cu_seq_lens_q": borders, "cu_seq_lens_k": borders, "use_cache": False}
    batch["labels"] = torch.where(torch.arange(_PROBE, device=ids.device) % 3 == 0, IGNORED, ids)
    with probing(model):
        largest = float(type(model).forward(model, **batch).logits.abs().max())
        for scale in (1.0, _LARGE / max(largest, 1e-3)):  # the second: effects that small random logits hide
            with _scaled_states(model, scale):
                own, ours = (
                    float(forward(**batch, num_items_in_batch=_PROBE).loss)
                    for forward in (MethodType(type(model).forward, model), model.forward)
                )
            if not abs(own - ours) <= ROUNDING[model.dtype] * abs(own):
                return "it changes its logits, or adds to its loss, in a way not known here"
    return None


@contextmanager
def _scaled_states(model: PreTrainedModel, scale: float) -> Iterator[None]:
    def enlarge(_: torch.nn.Module, __: Any, output: Any) -> Any:
        output["last_hidden_state"] = output["last_hidden_state"] * scale
        return output

    handle = body_of(model).register_forward_hook(enlarge)
    try:
        yield
    finally:
        handle.remove()


def _unsupported(model: PreTrainedModel, reason: str) -> GateauError:
    return GateauError(
        "training.architecture",
        f"{type(model).__name__} (model type {model.config.model_type}) cannot be trained with its loss in chunks: "
        f"{reason}. Set training.chunked_loss: false, or train an architecture such as Llama, Qwen, Mistral or Gemma "
        "as it comes from transformers.",
    )
