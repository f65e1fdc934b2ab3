"""Let the inputs of checkpointed layers wait for the backward pass in the host's memory instead of the GPU's.

That frees layers x tokens x hidden size numbers on the GPU. transformers has the same switch, which fails where there
is no GPU. Both copies are asynchronous from and to pinned memory, in the order of the GPU's work.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

from torch import Tensor, nn
from torch.autograd.graph import save_on_cpu

_NAME = "_gradient_checkpointing_func"  # transformers' attribute of every checkpointed module


def offload_checkpoints(model: nn.Module) -> None:
    """Offload what gradient checkpointing, which must be enabled, keeps of each layer."""
    for module in model.modules():
        if hasattr(module, _NAME):
            setattr(module, _NAME, partial(_checkpoint, checkpoint=getattr(module, _NAME)))


def has_offloaded_checkpoints(model: nn.Module) -> bool:
    """Return whether a layer's checkpoints are offloaded."""
    functions = [getattr(module, _NAME, None) for module in model.modules()]
    return any(isinstance(each, partial) and each.func is _checkpoint for each in functions)


def _checkpoint(layer: Callable[..., Any], *inputs: Any, checkpoint: Callable[..., Any]) -> Any:
    """Run a layer under `checkpoint`; only the inputs are saved outside its own hooks, and so on the CPU."""
    pinned = any(isinstance(each, Tensor) and each.is_cuda for each in inputs)
    with save_on_cpu(pin_memory=pinned):
        return checkpoint(layer, *inputs)
