"""A model of a configuration's shape with random weights and fewer layers: enough to time what a pass costs."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

from gateau_dagster.models.flops import ModelShape

if TYPE_CHECKING:
    import torch
    from transformers.configuration_utils import PreTrainedConfig

    from gateau_dagster.models.loading import LoadedModel

# A prime, so that no two rows of a matrix are equal.
_BLOCK = 1_000_003
_SHARE_OF_MEMORY = 0.5


class TooLargeError(ValueError):
    """Even one layer would take too much of the device's memory."""


def random_model(
    config: PreTrainedConfig, *, layers: int, dtype: str, device: torch.device, trust_remote_code: bool
) -> LoadedModel:
    """The first `layers` layers of a model of this configuration, on the device; it has no tokenizer.

    Raises TooLargeError when it would take more than half of the memory that is free.
    """
    import torch
    from transformers import AutoModelForCausalLM
    from transformers.initialization import no_init_weights

    from gateau_dagster.models.loading import LoadedModel

    reduced, kind = with_layers(config, layers), getattr(torch, dtype)
    options: dict[str, Any] = {"dtype": kind, "trust_remote_code": trust_remote_code}
    with torch.device("meta"):
        sizes = AutoModelForCausalLM.from_config(copy.deepcopy(reduced), **options).parameters()
    needed = sum(parameter.numel() for parameter in sizes) * kind.itemsize
    if needed > _SHARE_OF_MEMORY * free_memory(device):
        raise TooLargeError(f"{needed / 1e9:.1f} GB for {layers} of its layers are too much for this device")
    with torch.random.fork_rng(devices=[]), no_init_weights():
        model = AutoModelForCausalLM.from_config(reduced, **options)
    _fill(model)
    model.to(device=device).eval().requires_grad_(False)
    unused: Any = None
    return LoadedModel(model=model, tokenizer=unused, window=None, device=device, name=str(config.model_type))


def with_layers(config: PreTrainedConfig, layers: int) -> PreTrainedConfig:
    """A copy of the configuration with its first `layers` layers."""
    reduced = copy.deepcopy(config)
    text = reduced.get_text_config(decoder=True)
    whole = text.num_hidden_layers
    for name, value in list(vars(text).items()):
        if isinstance(value, list) and len(value) == whole:  # layer_types and its like: an entry a layer
            setattr(text, name, value[:layers])
    text.num_hidden_layers = layers
    return reduced


def calibration_layers(shape: ModelShape, parameters: float) -> int:
    """As many layers as have about this many parameters: all of a small model, one of a large one."""
    return max(1, min(shape.layers, int(parameters * 2 * shape.layers / shape.token_flops)))


def free_memory(device: torch.device) -> float:
    """Bytes."""
    if device.type == "cuda":
        import torch

        return torch.cuda.mem_get_info(device)[0]
    import psutil

    return psutil.virtual_memory().available


def _fill(model: Any) -> None:
    """Numbers like those of an initialised model, from one block of them: drawing 10^9 would take a minute."""
    import torch

    block = 0.02 * torch.randn(_BLOCK, generator=torch.Generator().manual_seed(0))
    for parameter in model.parameters():
        flat = parameter.data.view(-1)
        if parameter.dim() < 2:
            flat.fill_(1.0)
            continue
        for start in range(0, flat.numel(), _BLOCK):
            part = flat[start : start + _BLOCK]
            part.copy_(block[: part.numel()])
