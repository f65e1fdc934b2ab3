"""How much arithmetic a pass of a decoder is, from its shape and the lengths it reads: multiply-adds count as two."""

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from transformers.configuration_utils import PreTrainedConfig

Lengths: TypeAlias = npt.NDArray[np.float64]

# Model types whose feed-forward layer is two matrices; in all others a third one is the gate.
_UNGATED = {
    "bloom", "codegen", "falcon", "gpt2", "gpt_bigcode", "gpt_neo", "gpt_neox", "gpt_neox_japanese", "gptj", "mpt",
    "nemotron", "opt", "persimmon", "phi", "starcoder2", "xglm",
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class ModelShape:
    """The sizes that decide a decoder's arithmetic.

    Layers of mixtures of experts count what one token meets: `intermediate` wide, after a router of `router` experts;
    `dense_layers` of the layers have an ordinary feed-forward layer, `dense_intermediate` wide, instead.
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
    spans: tuple[int | None, ...] = ()  # keys that a query of each layer sees: None all, 0 no attention; (): all of all

    @classmethod
    def of(cls, config: "PreTrainedConfig") -> "ModelShape":
        """From a model's configuration (Llama, Qwen, Mistral, Mixtral, GPT-2 and their like)."""
        text = config.get_text_config(decoder=True)
        hidden, heads = text.hidden_size, text.num_attention_heads
        return cls(
            layers=text.num_hidden_layers,
            hidden=hidden,
            heads=heads,
            kv_heads=_kv_heads(text, heads),
            head_dim=getattr(text, "head_dim", None) or hidden // heads,
            vocabulary=text.vocab_size,
            gated=text.model_type not in _UNGATED,
            spans=_spans(text),
            **_feed_forward(text),
        )

    @property
    def token_flops(self) -> float:
        """FLOPs of all layers for one token, without its attention to others."""
        projections = self.hidden * self.head_dim * 2 * (self.heads + self.kv_heads)
        layers = self.layers - self.dense_layers
        feed_forward = layers * self._token_wise(dense=False) + self.dense_layers * self._token_wise(dense=True)
        return 2.0 * (self.layers * projections + feed_forward)

    def attention_flops(self, lengths: Lengths) -> Lengths:
        """FLOPs of q Kᵀ and the weighted sum over all layers, for a document of each length: causal, within windows."""
        pairs = np.zeros_like(lengths, dtype=np.float64)
        for span, layers in self._spans.items():
            pairs += layers * _pairs(lengths, span)
        return 4.0 * self.heads * self.head_dim * pairs

    def pass_flops(self, lengths: Lengths, rows: Lengths | None = None) -> Lengths:
        """FLOPs of all layers over one document of each length, which attends causally to itself.

        With `rows` the last layer computes only so many rows of each, those that predict its last `rows` tokens:
        queries, attention, output projection and feed-forward layer; keys and values are those of all tokens. One row
        more where the attention of the response is observed, which is not counted. On CUDA, and in a sliding window,
        the last layer's attention is computed whole, and with it the queries where one matrix makes them with keys and
        values; it is counted as if it were not. A share of peak is understated by that, by 1/layers of the attention.
        """
        whole = self.token_flops * lengths + self.attention_flops(lengths)
        if rows is None:
            return whole
        queries_and_output = 2 * self.hidden * self.head_dim * self.heads
        spared = 2.0 * (queries_and_output + self._token_wise(dense=self.ends_dense)) * (lengths - rows)
        span, last = self.spans[-1] if self.spans else None, lengths - 1  # the last token predicts nothing
        computed = _pairs(last, span) - _pairs(np.maximum(last - rows, 0), span)
        return whole - spared - 4.0 * self.heads * self.head_dim * (_pairs(lengths, span) - computed)

    def head_flops(self, rows: float) -> float:
        """FLOPs of the output layer for `rows` tokens."""
        return 2.0 * self.hidden * self.vocabulary * rows

    def attention_row_flops(self, rows: float, length: float) -> float:
        """FLOPs of computing the weights of `rows` queries over `length` keys once more, in all layers (Eq. 4)."""
        return rows * float(self.attention_row_flops_each(np.array([length], dtype=np.float64))[0])

    def attention_row_flops_each(self, lengths: Lengths) -> Lengths:
        """FLOPs of the weights of one query over each number of keys, in all layers."""
        keys = np.zeros_like(lengths, dtype=np.float64)
        for span, layers in self._spans.items():
            keys += layers * (lengths if span is None else np.minimum(lengths, span))
        return 2.0 * self.heads * self.head_dim * keys

    def _token_wise(self, *, dense: bool) -> float:
        """Multiply-adds of one token in the feed-forward part of a layer."""
        matrices = 3 if self.gated else 2
        if dense:
            return self.hidden * matrices * self.dense_intermediate
        return self.hidden * (matrices * self.intermediate + self.router)

    @property
    def _spans(self) -> Counter[int | None]:
        """How many layers see how much."""
        return Counter(self.spans or (None,) * self.layers)


def _pairs(lengths: Lengths, span: int | None) -> Lengths:
    """Pairs of a query and a key that it sees, in a document of each length and one layer."""
    seen = lengths if span is None else np.minimum(lengths, span)
    return seen * (seen + 1) / 2 + (lengths - seen) * seen


def _kv_heads(text: Any, heads: int) -> int:
    if text.model_type == "falcon" and not text.new_decoder_architecture:
        return 1 if text.multi_query else heads
    return getattr(text, "num_key_value_heads", None) or getattr(text, "num_kv_heads", None) or heads


def _feed_forward(text: Any) -> dict[str, Any]:
    """The fields that describe the feed-forward layers."""
    dense = _first(text, "ffn_dim", "ffn_hidden_size", "n_inner", "intermediate_size") or 4 * text.hidden_size
    experts = _first(text, "num_experts", "num_local_experts", "n_routed_experts") or 0
    chosen = _first(text, "num_experts_per_tok") or 0
    if not experts or not chosen:
        return {"intermediate": dense}
    width = _first(text, "moe_intermediate_size") or dense
    shared = (_first(text, "n_shared_experts") or 0) * width + (_first(text, "shared_expert_intermediate_size") or 0)
    gates = 1 if _first(text, "shared_expert_intermediate_size") else 0  # the shared expert's own gate
    plain = {*range(_first(text, "first_k_dense_replace") or 0), *(_first(text, "mlp_only_layers") or [])}
    step = _first(text, "decoder_sparse_step") or 1
    plain |= {layer for layer in range(text.num_hidden_layers) if (layer + 1) % step}
    return {
        "intermediate": chosen * width + shared,
        "router": experts + gates,
        "dense_layers": len(plain & {*range(text.num_hidden_layers)}),
        "dense_intermediate": dense,
        "ends_dense": text.num_hidden_layers - 1 in plain,
    }


def _spans(text: Any) -> tuple[int | None, ...]:
    """What each layer's queries see; a layer of chunked attention counts as a window of a chunk's length."""
    window = _first(text, "sliding_window", "attention_chunk_size")
    kinds = getattr(text, "layer_types", None)
    if not kinds:
        # Without a list every layer has the window; a flag may switch it off.
        return (window,) * text.num_hidden_layers if window and getattr(text, "use_sliding_window", True) else ()
    local = {"sliding_attention", "chunked_attention"}
    found = [window if kind in local else None if kind == "full_attention" else 0 for kind in kinds]
    return tuple(found) if any(span is not None for span in found) else ()


def _first(text: Any, *names: str) -> Any:
    """The first of these settings that the configuration has and that says something."""
    return next((value for name in names if (value := getattr(text, name, None))), None)


def whole_text_flops(lengths: Lengths, weights: int, layers: int, hidden: int) -> Lengths:
    """FLOPs of a model that reads a text of each length as a whole, all tokens attending to all.

    `weights`: those of its matrices, without the embedding of words; its `layers` are `hidden` wide.
    """
    return 2.0 * weights * lengths + 4.0 * layers * hidden * lengths**2


@dataclass(kw_only=True)
class Work:
    """Tokens through a model and their FLOPs, added up as batches are done."""

    tokens: int = 0
    flops: float = 0.0

    def add(self, tokens: int, flops: float) -> None:
        """One more batch."""
        self.tokens += tokens
        self.flops += flops


@dataclass(kw_only=True)
class Meter:
    """What scoring has cost so far, by table: the full pass of theta_B counts for `perplexity` where that is wanted."""

    perplexity: Work = field(default_factory=Work)
    cam: Work = field(default_factory=Work)
