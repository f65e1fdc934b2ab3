"""Find a model's body, and run it on a few tokens before it is used, also while ZeRO-3 partitions its parameters."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

ROUNDING = {torch.float64: 1e-6, torch.float32: 1e-3, torch.float16: 2e-2, torch.bfloat16: 0.1}
"""The largest relative difference of a probe's vectors that rounding explains, by the model's precision."""


@contextmanager
def probing(model: PreTrainedModel) -> Iterator[None]:
    """Run forward passes without gradients and dropout; under ZeRO-3 each module's parameters are gathered.

    Under ZeRO-3 all ranks must make the same passes.
    """
    trained = model.training
    model.eval()
    try:
        with torch.no_grad(), _gathered(model):
            yield
    finally:
        model.train(trained)


@contextmanager
def _gathered(model: PreTrainedModel) -> Iterator[None]:
    """Gather partitioned parameters module by module: before DeepSpeed's engine exists, nothing else does it."""
    spread = [
        module for module in model.modules() if any(hasattr(p, "ds_id") for p in module.parameters(recurse=False))
    ]
    if not spread:
        yield
        return
    import deepspeed

    running: dict[torch.nn.Module, ExitStack] = {}

    def gather(module: torch.nn.Module, _: Any) -> None:
        running[module] = ExitStack()
        running[module].enter_context(deepspeed.zero.GatheredParameters(list(module.parameters(recurse=False))))

    def release(module: torch.nn.Module, *_: Any) -> None:
        running.pop(module).close()

    handles = [module.register_forward_pre_hook(gather) for module in spread]
    handles += [module.register_forward_hook(release) for module in spread]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
        for stack in running.values():  # left by a pass that failed
            stack.close()


def probed_states(model: PreTrainedModel, **inputs: Any) -> Tensor:
    """Return the last hidden states [tokens, hidden] of a batch of one row; see `probing`."""
    with probing(model):
        return body_of(model)(**inputs, use_cache=False, return_dict=True).last_hidden_state[0]


def probe_ids(model: PreTrainedModel, count: int) -> Tensor:
    """Return `count` token ids that differ as far as the vocabulary allows: int64 [count] on the model's device."""
    known = model.config.get_text_config(decoder=True).vocab_size
    return (torch.arange(count) % known).to(model.device)


def body_of(model: PreTrainedModel) -> torch.nn.Module:
    """Return `base_model`, or the part that the model really calls; the model itself if there is no such part.

    Llama 4 does not name its body as its class says. OPT and the decoders of Bart and similar models call the decoder
    within their body. To use the parts separately, check first that they are separate (`last_layers.head`).
    """
    body = model.base_model
    if body is model:
        body = getattr(model, "model", model)
    inner = getattr(body, "decoder", None)
    return inner if isinstance(inner, PreTrainedModel) else body
