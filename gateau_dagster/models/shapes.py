"""Read the shape of a decoder: the sizes that decide its arithmetic, see flops.py.

Layers are read from the configuration where it describes them. Otherwise they are read from the modules of a model that
is built without weights. Such architectures have layers that differ (Gemma 4's head sizes, Qwen3-Next's layers without
attention), or other names in their configurations.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from gateau_dagster.errors import GateauError
from gateau_dagster.models.flops import LayerWork, ModelShape
from gateau_dagster.models.model_config import class_of, first_of, spans_of

if TYPE_CHECKING:
    from torch import nn
    from transformers import PreTrainedModel
    from transformers.configuration_utils import PreTrainedConfig

_STATE = 3  # multiply-adds per token and number of a recurrent layer's state
_SOFTMAX = {"full_attention", "sliding_attention", "chunked_attention"}
_SIZES = ("hidden_size", "num_attention_heads", "num_hidden_layers", "vocab_size")
# Settings of layers without plain attention: latent, shared between layers, recurrent, or with other inputs.
_OTHERWISE = (
    "kv_lora_rank", "num_kv_shared_layers", "hidden_size_per_layer_input", "mamba_d_state", "ssm_state_size",
    "state_size", "conv_L_cache", "linear_num_value_heads", "layers_block_type", "block_types",
)  # fmt: skip

_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
EXPERTS_A_TOKEN = ("num_experts_per_tok", "top_k_experts", "moe_k", "moe_topk", "num_selected_experts")

# Model types whose feed-forward layer is two matrices; in all others a third one is the gate.
_UNGATED = {
    "bloom", "codegen", "falcon", "gpt2", "gpt_bigcode", "gpt_neo", "gpt_neox", "gpt_neox_japanese", "gptj", "mpt",
    "nemotron", "opt", "persimmon", "phi", "starcoder2", "xglm",
}  # fmt: skip


def model_shape(config: PreTrainedConfig) -> ModelShape:
    """Return the shape of a model's configuration.

    For Llama, Qwen, Mistral, Mixtral, GPT-2 and similar models, the configuration's numbers suffice. A model whose
    layers differ, or that uses other names, is built without weights, which imports torch (`built_layers`).

    Raises GateauError if that fails: the work of such a model is unknown.
    """
    text = config.get_text_config(decoder=True)
    if not alike(text):
        return built_shape(config)
    hidden, heads = text.hidden_size, text.num_attention_heads
    kv_heads = getattr(text, "num_key_value_heads", None) or getattr(text, "num_kv_heads", None) or heads
    if text.model_type == "falcon" and not text.new_decoder_architecture:
        kv_heads = 1 if text.multi_query else heads
    return ModelShape(
        layers=text.num_hidden_layers,
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=getattr(text, "head_dim", None) or hidden // heads,
        vocabulary=text.vocab_size,
        gated=text.model_type not in _UNGATED,
        spans=spans_of(text),
        **_feed_forward(text),
    )


def built_shape(config: PreTrainedConfig) -> ModelShape:
    """Return the shape of a model that is built without weights, whatever its layers; raise as `model_shape` does."""
    text = config.get_text_config(decoder=True)
    one = text.per_layer_config[-1] if getattr(text, "is_heterogeneous", False) else text
    experts, chosen = first_of(one, *_EXPERTS), first_of(one, *EXPERTS_A_TOKEN)
    found = built_layers(config, expert_share=chosen / experts if experts and chosen else 1.0)
    spans = spans_of(text)
    if len(spans) != len(found.each):  # the configuration names none, or counts layers differently
        spans = (None,) * len(found.each)
    return ModelShape(
        layers=len(found.each),
        hidden=found.hidden,
        **dict.fromkeys(("heads", "kv_heads", "head_dim", "intermediate"), 0),
        vocabulary=text.vocab_size,
        spans=tuple(span if layer.width else 0 for layer, span in zip(found.each, spans, strict=True)),
        each=tuple(
            replace(layer, width=0 if span == 0 else layer.width) for layer, span in zip(found.each, spans, strict=True)
        ),
        outside=found.outside,
    )


def known_shape(config: PreTrainedConfig) -> ModelShape | None:
    """Return `model_shape`; None if a model's work is unknown."""
    try:
        return model_shape(config)
    except GateauError:
        return None


def alike(text: Any) -> bool:
    """Return whether all layers are softmax attention of one shape and a feed-forward layer, under the usual names."""
    if getattr(text, "is_heterogeneous", False) or not {*(getattr(text, "layer_types", None) or ())} <= _SOFTMAX:
        return False
    if any(getattr(text, name, None) for name in _OTHERWISE):
        return False
    return all(isinstance(getattr(text, name, None), int) for name in _SIZES)


def _feed_forward(text: Any) -> dict[str, Any]:
    """Return the fields of ModelShape that describe the feed-forward layers."""
    dense = first_of(text, "ffn_dim", "ffn_hidden_size", "n_inner", "intermediate_size") or 4 * text.hidden_size
    experts = first_of(text, "num_experts", "num_local_experts", "n_routed_experts") or 0
    chosen = first_of(text, "num_experts_per_tok") or 0
    if not experts or not chosen:
        return {"intermediate": dense}
    width = first_of(text, "moe_intermediate_size") or dense
    shared = (first_of(text, "n_shared_experts") or 0) * width + (
        first_of(text, "shared_expert_intermediate_size") or 0
    )
    gates = 1 if first_of(text, "shared_expert_intermediate_size") else 0  # the shared expert's own gate
    plain = {*range(first_of(text, "first_k_dense_replace") or 0), *(first_of(text, "mlp_only_layers") or [])}
    step = first_of(text, "decoder_sparse_step") or 1
    plain |= {layer for layer in range(text.num_hidden_layers) if (layer + 1) % step}
    return {
        "intermediate": chosen * width + shared,
        "router": experts + gates,
        "dense_layers": len(plain & {*range(text.num_hidden_layers)}),
        "dense_intermediate": dense,
        "ends_dense": text.num_hidden_layers - 1 in plain,
    }


@dataclass(frozen=True, kw_only=True)
class BuiltLayers:
    """The layers in order, the width of the output layer's input, and a token's multiply-adds outside both."""

    each: tuple[LayerWork, ...]
    hidden: int
    outside: float


def built_layers(config: PreTrainedConfig, *, expert_share: float) -> BuiltLayers:
    """Return the layers of a model of this configuration, built on the device 'meta', which allocates no memory.

    expert_share: the share of the experts' matrices that one token meets.

    Raises GateauError if transformers has no class for it, it cannot be built, or its layers are not found.
    """
    model, layers = model_without_weights(config)
    inside = {id(part) for layer in layers for part in layer.modules()}
    head: Any = model.get_output_embeddings()
    outside = [part for part in model.modules() if id(part) not in inside and part is not head]
    return BuiltLayers(
        each=tuple(_work(layer, expert_share) for layer in layers),
        hidden=int(getattr(head, "in_features", 0) or config.get_text_config(decoder=True).hidden_size),
        outside=sum(_own(part, "", 1.0) for part in outside),
    )


def model_without_weights(config: PreTrainedConfig) -> tuple[PreTrainedModel, Sequence[nn.Module]]:
    """Return a model of this configuration on the device 'meta', which allocates no memory, and its layers in order.

    Raises GateauError if transformers has no class for it, it cannot be built, or its layers are not found.
    """
    import torch
    from transformers import AutoModelForCausalLM

    from gateau_dagster.models.last_layers import layers_of

    kind = class_of(config)
    if kind is None:
        raise GateauError(
            "models.flops",
            f"the arithmetic of model type {config.model_type} is unknown: transformers has no class for it",
        )
    unknown = f"the arithmetic of {kind.__name__} is not known"
    try:
        with torch.device("meta"):
            # A copy, since building a model changes the configuration that it is given, and others read this one.
            model = AutoModelForCausalLM.from_config(copy.deepcopy(config), dtype=torch.float32)
        layers = layers_of(model)
    except Exception as error:  # each architecture's code raises its own; none of them may end a run
        raise GateauError(
            "models.flops", f"{unknown}: it cannot be built without weights: {type(error).__name__}: {error}"
        ) from error
    if not layers:
        raise GateauError("models.flops", f"{unknown}: its layers are not in one list")
    return model, layers


def _work(layer: nn.Module, share: float) -> LayerWork:
    from gateau_dagster.models.last_layers import token_wise_parts

    state = _STATE * sum(_state(part) for part in layer.modules())
    spared = sum(_matrices(part, share) for part in token_wise_parts(layer))
    return LayerWork(token=_matrices(layer, share) + state, spared=spared, width=_width(layer))


def _matrices(module: nn.Module, share: float) -> float:
    return sum(_own(part, name, share) for name, part in module.named_modules())


def _own(part: nn.Module, name: str, share: float) -> float:
    """Return the multiply-adds in the module's own matrices; vectors and embeddings count as 0.

    name: the module's path in its layer.
    """
    from torch import nn

    if isinstance(part, nn.Embedding):
        return 0.0
    of_experts = share if "experts" in name.split(".") and "shared_experts" not in name.split(".") else 1.0
    # The biases of experts have two dimensions, like matrices.
    own = part.named_parameters(recurse=False)
    return of_experts * sum(weight.numel() for name, weight in own if weight.ndim > 1 and "bias" not in name)


def _state(part: nn.Module) -> int:
    """Return the size of a recurrent mixer's state (Mamba, Mamba 2, gated delta rule); 0 for other modules."""
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
    """Return heads · head_dim of a layer's softmax attention, as its output projection reads them; 0 without one."""
    from gateau_dagster.models.last_layers import output_projection

    found = output_projection(layer)
    if found is None:
        return 0
    weight = found.weight
    # transformers' Conv1D of GPT-2 holds its matrix transposed.
    return int(getattr(found, "in_features", 0) or weight.shape[0])  # pyright: ignore[reportIndexIssue, reportArgumentType]
