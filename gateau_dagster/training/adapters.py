"""Train low-rank adapters (LoRA, Hu et al. 2021) by peft: add them before the training, merge them after it."""

import warnings
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from gateau_dagster.config.training import LoraConfig
from gateau_dagster.errors import GateauError

if TYPE_CHECKING:
    from peft import PeftModel

_NAME = "default"
_PREFIX = "base_model.model."
_ADAPTED = ".base_layer."


def with_adapters(model: PreTrainedModel, config: LoraConfig, *, seed: int) -> "PeftModel":
    """Return `model` with frozen weights and trainable adapters in float32. Their first output is zero (B starts as
    zeros).

    `seed` decides the initial A: every attempt and every rank starts alike.

    Raises:
        GateauError: no layer of the model has one of the names in `config.modules`.
    """
    import peft

    settings = peft.LoraConfig(
        r=config.rank,
        lora_alpha=config.alpha,  # pyright: ignore[reportArgumentType]  # a float works, too
        lora_dropout=config.dropout,
        target_modules=config.modules,
        task_type="CAUSAL_LM",
    )
    torch.manual_seed(seed)
    try:
        with warnings.catch_warnings():
            # peft reads an attribute that transformers is renaming, which no user can change.
            warnings.filterwarnings("ignore", message="`is_gradient_checkpointing`", category=FutureWarning)
            adapted = peft.get_peft_model(model, settings, adapter_name=_NAME)
    except ValueError as error:
        raise GateauError(
            "training.lora",
            f"training.lora.modules: {config.modules} does not fit this model ({str(error).splitlines()[0]}). Name "
            "linear layers that it has, or write all-linear.",
        ) from error
    assert isinstance(adapted, peft.PeftModel)
    return adapted


def merged_state(model: "PeftModel", state: dict[str, Tensor] | None = None) -> dict[str, Tensor]:
    """Return the weights of the model without adapters, each adapted one W + alpha / rank · B A (Hu et al. 2021, Eq.
    3).

    Args:
        model: result of `with_adapters`.
        state: its whole state, if the model itself holds only a part (ZeRO-3); its own by default.
    """
    whole = model.state_dict() if state is None else state
    modules = dict(model.named_modules())
    merged: dict[str, Tensor] = {}
    for name, value in whole.items():
        if ".lora_" in name:
            continue
        layer, adapted, kind = name.partition(_ADAPTED)
        own = f"{layer}.{kind}" if adapted else name
        trained = adapted and kind == "weight"
        merged[own.removeprefix(_PREFIX)] = (
            value + _update(whole, layer, modules[layer]).to(value) if trained else value
        )
    return merged


def _update(state: dict[str, Tensor], layer: str, module: Any) -> Tensor:
    """Return the adapter's product, float32, in the shape of the weight."""
    down, up = (state[f"{layer}.lora_{side}.{_NAME}.weight"].float() for side in "AB")
    product = module.scaling[_NAME] * (up @ down)
    return product.T if getattr(module, "fan_in_fan_out", False) else product


def adapted_base(model: "PeftModel") -> PreTrainedModel:
    """Return the model inside; its layers still hold the adapters."""
    base = model.get_base_model()
    assert isinstance(base, PreTrainedModel)
    return base
