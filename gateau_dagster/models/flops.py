"""Count the arithmetic of a decoder's pass from its shape and the lengths it reads; multiply-adds count as two.

Layers are read from the configuration where it describes them. Otherwise they are read from the modules of a model that
is built without weights. Such architectures have layers that differ (Gemma 4's head sizes, Qwen3-Next's layers without
attention), or other names in their configurations.

A layer's work for one token is its matrices; of the experts, only those that the token meets. Convolutions are matrices
of their width. A recurrent layer's state of n numbers counts as 3 n multiply-adds per token (decay, write, read).
That is an approximation: the work of xLSTM, RWKV and RecurrentGemma outside their matrices is not counted.
"""

# The count serves the estimates of `gateau plan`, the shares of a joint pass, and the share of a device's peak in the
# report. Estimates divide it by a measured speed. What is left out of both cancels, such as norms, softmax and
# rotations.
#
# When another way is better: torch's FlopCounterMode counts what a pass runs, but needs the pass.
# tests/models/test_flops.py compares the two.

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from gateau_dagster.errors import GateauError
from gateau_dagster.models.model_config import class_of, first_of, spans_of

if TYPE_CHECKING:
    from torch import nn
    from transformers import PreTrainedModel
    from transformers.configuration_utils import PreTrainedConfig

_STATE = 3  # multiply-adds per token and number of a recurrent layer's state


@dataclass(frozen=True, kw_only=True)
class LayerWork:
    """The multiply-adds of one layer for one token.

    token: all but its attention to others. spared: the part of these that the last layer can skip for a token whose
    output is not read. width: heads times head size of its softmax attention; 0 if it has none.
    """

    token: float
    spared: float
    width: int


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
            model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
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


Lengths: TypeAlias = npt.NDArray[np.float64]

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


@dataclass(frozen=True, kw_only=True)
class ModelShape:
    """The sizes that decide a decoder's arithmetic.

    In a mixture of experts, a layer counts what one token meets: `intermediate` wide, after a router of `router`
    experts. `dense_layers` of the layers have an ordinary feed-forward layer instead, `dense_intermediate` wide. If
    layers differ in other ways, `each` describes them and the sizes of heads and feed-forward layers are 0.
    """

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int  # of the feed-forward layer; with experts, of all that one token meets
    vocabulary: int
    gated: bool = True
    router: int = 0
    dense_layers: int = 0
    dense_intermediate: int = 0
    ends_dense: bool = False  # the last layer is one of the dense ones
    spans: tuple[int | None, ...] = ()  # keys that a query of each layer sees: None all, 0 no attention; (): all in all
    each: tuple[LayerWork, ...] = ()  # for models whose layers differ (built_layers), instead of the sizes above
    outside: float = 0.0  # with `each`: multiply-adds of a token outside the layers and the output layer

    @classmethod
    def of(cls, config: PreTrainedConfig) -> ModelShape:
        """Return the shape of a model's configuration.

        For Llama, Qwen, Mistral, Mixtral, GPT-2 and similar models, the configuration's numbers suffice. A model whose
        layers differ, or that uses other names, is built without weights, which imports torch (`built_layers`).

        Raises GateauError if that fails: the work of such a model is unknown.
        """
        text = config.get_text_config(decoder=True)
        if not alike(text):
            return cls.built(config)
        hidden, heads = text.hidden_size, text.num_attention_heads
        kv_heads = getattr(text, "num_key_value_heads", None) or getattr(text, "num_kv_heads", None) or heads
        if text.model_type == "falcon" and not text.new_decoder_architecture:
            kv_heads = 1 if text.multi_query else heads
        return cls(
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

    @classmethod
    def built(cls, config: PreTrainedConfig) -> ModelShape:
        """Return the shape of a model by building it without weights, whatever its layers; raise what `of` raises."""
        text = config.get_text_config(decoder=True)
        one = text.per_layer_config[-1] if getattr(text, "is_heterogeneous", False) else text
        experts, chosen = first_of(one, *_EXPERTS), first_of(one, *EXPERTS_A_TOKEN)
        found = built_layers(config, expert_share=chosen / experts if experts and chosen else 1.0)
        spans = spans_of(text)
        if len(spans) != len(found.each):  # the configuration names none, or counts layers differently
            spans = (None,) * len(found.each)
        return cls(
            layers=len(found.each),
            hidden=found.hidden,
            **dict.fromkeys(("heads", "kv_heads", "head_dim", "intermediate"), 0),
            vocabulary=text.vocab_size,
            spans=tuple(span if layer.width else 0 for layer, span in zip(found.each, spans, strict=True)),
            each=tuple(
                replace(layer, width=0 if span == 0 else layer.width)
                for layer, span in zip(found.each, spans, strict=True)
            ),
            outside=found.outside,
        )

    @classmethod
    def known(cls, config: PreTrainedConfig) -> ModelShape | None:
        """Return the shape of `of`; None if a model's work is unknown."""
        try:
            return cls.of(config)
        except GateauError:
            return None

    @property
    def token_flops(self) -> float:
        """Return the FLOPs of all layers for one token, without its attention to others."""
        if self.each:
            return 2.0 * (self.outside + sum(layer.token for layer in self.each))
        projections = self.hidden * self.head_dim * 2 * (self.heads + self.kv_heads)
        layers = self.layers - self.dense_layers
        feed_forward = layers * self._token_wise(dense=False) + self.dense_layers * self._token_wise(dense=True)
        return 2.0 * (self.layers * projections + feed_forward)

    def attention_flops(self, lengths: Lengths) -> Lengths:
        """Return the FLOPs of q Kᵀ and the weighted sum over all layers, per document length: causal, windowed."""
        products = np.zeros_like(lengths, dtype=np.float64)
        for (span, width), layers in self._attention.items():
            products += layers * width * _pairs(lengths, span)
        return 4.0 * products

    def pass_flops(self, lengths: Lengths, rows: Lengths | None = None) -> Lengths:
        """Return the FLOPs of all layers over one document of each length, with causal attention.

        With `rows`, the last layer computes only the rows that predict each document's last `rows` tokens: queries,
        attention, output projection and feed-forward layer. Keys and values are those of all tokens. Observing the
        response's attention takes one more row, which is not counted.

        On CUDA and in a sliding window, the last layer computes its attention for all rows. It computes all queries,
        too, if one matrix makes queries, keys and values. This count ignores that, which understates the share of peak
        by 1/layers of the attention.
        """
        whole = self.token_flops * lengths + self.attention_flops(lengths)
        if rows is None:
            return whole
        width = self.each[-1].width if self.each else self.heads * self.head_dim
        own = self.each[-1].spared if self.each else 2 * self.hidden * width + self._token_wise(dense=self.ends_dense)
        spared = 2.0 * own * (lengths - rows)
        span, last = self.spans[-1] if self.spans else None, lengths - 1  # the last token predicts nothing
        computed = _pairs(last, span) - _pairs(np.maximum(last - rows, 0), span)
        return whole - spared - 4.0 * width * (_pairs(lengths, span) - computed)

    def head_flops(self, rows: float) -> float:
        """Return the FLOPs of the output layer for `rows` tokens."""
        return 2.0 * self.hidden * self.vocabulary * rows

    def attention_row_flops(self, rows: float, length: float) -> float:
        """Return the FLOPs of recomputing the weights of `rows` queries over `length` keys in all layers (Eq. 4)."""
        return rows * float(self.attention_row_flops_each(np.array([length], dtype=np.float64))[0])

    def attention_row_flops_each(self, lengths: Lengths) -> Lengths:
        """Return the FLOPs of the weights of one query over each number of keys, in all layers."""
        products = np.zeros_like(lengths, dtype=np.float64)
        for (span, width), layers in self._attention.items():
            products += layers * width * (lengths if span is None else np.minimum(lengths, span))
        return 2.0 * products

    def _token_wise(self, *, dense: bool) -> float:
        """Return the multiply-adds of one token in the feed-forward part of a layer."""
        matrices = 3 if self.gated else 2
        if dense:
            return self.hidden * matrices * self.dense_intermediate
        return self.hidden * (matrices * self.intermediate + self.router)

    @property
    def _attention(self) -> Counter[tuple[int | None, int]]:
        # Layers by span and total width of the heads: each of these few kinds costs one pass over the lengths.
        spans = self.spans or (None,) * self.layers
        widths = [layer.width for layer in self.each] or [self.heads * self.head_dim] * len(spans)
        return Counter(zip(spans, widths, strict=True))


def _pairs(lengths: Lengths, span: int | None) -> Lengths:
    seen = lengths if span is None else np.minimum(lengths, span)
    return seen * (seen + 1) / 2 + (lengths - seen) * seen


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


def whole_text_flops(lengths: Lengths, weights: int, layers: int, hidden: int) -> Lengths:
    """Return the FLOPs of a model that reads a text of each length as a whole, all tokens attending to all.

    weights: number of weights in its matrices, without the embedding; its `layers` are `hidden` wide.
    """
    return 2.0 * weights * lengths + 4.0 * layers * hidden * lengths**2
