"""The loss of a causal language model without its logits: only the labelled rows meet the output layer, some at a time.

Everything between the hidden states and the loss happens inside one call of the output layer, however many chunks it
takes: under ZeRO-3 every rank gathers the layer once per pass, whatever the rows it has.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from types import MethodType
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.modeling_outputs import CausalLMOutputWithPast

from gateau_dagster.errors import GateauError
from gateau_dagster.models.body import body_of
from gateau_dagster.models.mask_pattern import UnknownAttentionError
from gateau_dagster.models.probe import ROUNDING, probe_ids, probing
from gateau_dagster.training.chunked_entropy import LogitChange, summed_nll
from gateau_dagster.training.encode import IGNORED

_PROBE = 8  # tokens of the probe's document
_LARGE = 30.0  # the probe's largest logit, at which a soft cap shows


def use_chunked_loss(model: PreTrainedModel, *, chunk: int | None = None) -> None:
    """Let `model(**inputs, labels=...)` return the loss of the labelled tokens and no logits.

    With `labels` int64 [B, T] (-100: no loss), label t is predicted from the tokens before it, and

        loss = Σ weights_t · -log P(label_t) / num_items_in_batch

    a float32 scalar (float64 for a float64 model). `weights` float32 [B, T], which LongAlign's loss weighting needs, is
    1 where it is not given; without `num_items_in_batch` the number of labels in this batch divides. No label at all
    gives a loss of 0 with gradients of 0 for every parameter. Without `labels` the model is what it was.

    Tied embeddings, a bias, frozen or not, Gemma's final soft cap and the logit scales of Granite and Cohere are known.

    Args:
        model: a causal language model of transformers, or one about to be wrapped by peft, DDP or DeepSpeed.
        chunk: rows of logits that exist at a time; None: as many as the device handles well.

    Raises:
        GateauError: the model does something else with its logits or adds to the loss, or its output layer is no plain
            linear one. Under ZeRO-3 all ranks must call this: it tries the model on a few tokens.
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
    **kwargs: Any,
) -> Any:
    """In the place of the model's own forward."""
    if labels is None:
        return type(self).forward(self, input_ids=input_ids, **kwargs)
    head = self.get_output_embeddings()
    if head is None or "forward" not in vars(head):
        raise _unsupported(self, "its output layer was exchanged since, for example by LoRA on lm_head")
    kwargs |= {"use_cache": False, "return_dict": True}
    states = body_of(self)(input_ids=input_ids, **kwargs).last_hidden_state  # [B, T, hidden]
    targets = labels[:, 1:].reshape(-1)
    rows = (targets != IGNORED).nonzero()[:, 0]
    total = head(
        states[:, :-1].reshape(-1, states.shape[-1])[rows],
        targets[rows],
        None if weights is None else weights[:, 1:].reshape(-1)[rows],
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
    """In the place of the output layer's own forward: with targets, the summed loss instead of the logits."""
    if targets is None:
        return type(self).forward(self, states)
    return summed_nll(states, self.weight, self.bias, targets, weights, change=change, chunk=chunk)


def _logit_change(model: PreTrainedModel) -> LogitChange:
    """What the model's configuration says about its logits."""
    config = model.config.get_text_config(decoder=True)
    scale = 1.0
    if isinstance(divisor := getattr(config, "logits_scaling", None), float | int):  # Granite
        scale /= divisor
    if isinstance(factor := getattr(config, "logit_scale", None), float | int):  # Cohere
        scale *= factor
    return LogitChange(scale=scale, softcap=getattr(config, "final_logit_softcapping", None))


def _why_not(model: PreTrainedModel) -> str | None:
    """Why the loss is not that of the model's own forward; None: it is."""
    ids = probe_ids(model, _PROBE)[None]
    borders = torch.tensor([0, _PROBE], dtype=torch.int32, device=ids.device)
    batch = {"input_ids": ids, "cu_seq_lens_q": borders, "cu_seq_lens_k": borders, "use_cache": False}
    batch["labels"] = torch.where(torch.arange(_PROBE, device=ids.device) % 3 == 0, IGNORED, ids)
    with probing(model):
        largest = float(type(model).forward(model, **batch).logits.abs().max())
        for scale in (1.0, _LARGE / max(largest, 1e-3)):  # the second: what a random model's small logits do not show
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
    """Let the model's body give states that are `scale` times as large."""

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
        f"{type(model).__name__} (model type {model.config.model_type}) cannot be trained with its loss in chunks: "
        f"{reason}. Set training.chunked_loss: false, or train an architecture such as Llama, Qwen, Mistral or Gemma "
        "as it comes from transformers."
    )
