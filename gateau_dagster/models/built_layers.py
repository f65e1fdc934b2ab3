"""The arithmetic of each layer, read off the modules of a model that is built without weights.

For architectures whose layers differ (Gemma 4's head sizes, Qwen3-Next's and Mamba hybrids' layers without attention)
or whose configuration uses names of its own. What a layer does with one token is its matrices, of experts those that
one token meets; convolutions are matrices of their own width. A recurrent layer's state of n numbers counts as 3 n
multiply-adds a token (decay, write, read), whatever the kernel does in blocks. That is an approximation; so is what
xLSTM, RWKV and RecurrentGemma do beside their matrices, which is not counted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gateau_dagster.errors import GateauError
from gateau_dagster.models.known_attention import class_of

if TYPE_CHECKING:
    from torch import Tensor, nn
    from transformers.configuration_utils import PreTrainedConfig

_STATE = 3  # multiply-adds of a token for each number of a recurrent layer's state


@dataclass(frozen=True, kw_only=True)
class LayerWork:
    """The multiply-adds of one layer for one token.

    token: all but its attention to others. spared: of these, what a token whose output nobody reads needs not in the
    last layer. width: heads times head size of its softmax attention; 0: it has none.
    """

    token: float
    spared: float
    width: int


@dataclass(frozen=True, kw_only=True)
class BuiltLayers:
    """The layers in order, the width of what the output layer reads, and a token's multiply-adds beside both."""

    each: tuple[LayerWork, ...]
    hidden: int
    outside: float


def built_layers(config: PreTrainedConfig, *, expert_share: float) -> BuiltLayers:
    """From the modules of a model of this configuration on the device 'meta', which holds no numbers.

    `expert_share`: of the experts' matrices, what one token meets.

    Raises GateauError where transformers has no class of its own for it, it cannot be built, or its layers are not
    found.
    """
    import torch
    from transformers import AutoModelForCausalLM

    from gateau_dagster.models.last_layers import layers_of

    kind = class_of(config)
    if kind is None:
        raise GateauError(f"the arithmetic of model type {config.model_type} is not known: transformers has no class")
    unknown = f"the arithmetic of {kind.__name__} is not known"
    try:
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        layers = layers_of(model)
    except Exception as error:  # each architecture's code has its own; none of them may end a run
        raise GateauError(f"{unknown}: it cannot be built without weights: {type(error).__name__}: {error}") from error
    if not layers:
        raise GateauError(f"{unknown}: its layers are not in one list")
    inside = {id(part) for layer in layers for part in layer.modules()}
    head: Any = model.get_output_embeddings()
    outside = [part for part in model.modules() if id(part) not in inside and part is not head]
    return BuiltLayers(
        each=tuple(_work(layer, expert_share) for layer in layers),
        hidden=int(getattr(head, "in_features", 0) or config.get_text_config(decoder=True).hidden_size),
        outside=sum(_own(part, "", 1.0) for part in outside),
    )


def _work(layer: nn.Module, share: float) -> LayerWork:
    from gateau_dagster.models.last_layers import token_wise_parts

    state = _STATE * sum(_state(part) for part in layer.modules())
    spared = sum(_matrices(part, share) for part in token_wise_parts(layer))
    return LayerWork(token=_matrices(layer, share) + state, spared=spared, width=_width(layer))


def _matrices(module: nn.Module, share: float) -> float:
    """Multiply-adds of one token in all matrices of a module."""
    return sum(_own(part, name, share) for name, part in module.named_modules())


def _own(part: nn.Module, name: str, share: float) -> float:
    """In the matrices of the module itself, which is called `name` in its layer; vectors and tables of words: none."""
    from torch import nn

    if isinstance(part, nn.Embedding):
        return 0.0
    of_experts = share if "experts" in name.split(".") and "shared_experts" not in name.split(".") else 1.0
    return of_experts * sum(
        weight.numel() for name, weight in part.named_parameters(recurse=False) if _multiplies(name, weight)
    )


def _multiplies(name: str, weight: Tensor) -> bool:
    """Whether a parameter is a matrix; the biases of experts have two dimensions as well."""
    return weight.ndim > 1 and "bias" not in name


def _state(part: nn.Module) -> int:
    """Numbers that a recurrent mixer carries from token to token: of Mamba, Mamba 2, gated delta rule; else 0."""
    for names in (
        ("num_v_heads", "head_k_dim", "head_v_dim"),
        ("num_heads", "head_dim", "ssm_state_size"),
        ("intermediate_size", "ssm_state_size"),
    ):
        sizes = [getattr(part, name, None) for name in names]
        if all(isinstance(size, int) for size in sizes):
            product = 1
            for size in sizes:
                product *= size  # pyright: ignore[reportOperatorIssue]
            return product
    return 0


def _width(layer: nn.Module) -> int:
    """heads · head_dim of a layer's softmax attention, as its output projection reads them; 0 without one."""
    from gateau_dagster.models.last_layers import output_projection

    found = output_projection(layer)
    if found is None:
        return 0
    weight = found.weight
    # transformers' Conv1D of GPT-2 holds its matrix the other way round.
    return int(getattr(found, "in_features", 0) or weight.shape[0])  # pyright: ignore[reportIndexIssue, reportArgumentType]
