"""How much arithmetic a pass of a decoder is, from its shape and the lengths it reads: multiply-adds count as two."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from transformers.configuration_utils import PreTrainedConfig


@dataclass(frozen=True, kw_only=True)
class ModelShape:
    """The sizes that decide a decoder's arithmetic."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int  # of the feed-forward layer; with experts, of all that one token meets
    vocabulary: int

    @classmethod
    def of(cls, config: PreTrainedConfig) -> "ModelShape":
        """From a model's configuration (Llama, Qwen, Mistral, Mixtral and their like)."""
        text = config.get_text_config(decoder=True)
        hidden, heads = text.hidden_size, text.num_attention_heads
        experts = getattr(text, "num_experts_per_tok", None) or 1
        width = getattr(text, "moe_intermediate_size", None) or getattr(text, "intermediate_size", None) or 4 * hidden
        return cls(
            layers=text.num_hidden_layers,
            hidden=hidden,
            heads=heads,
            kv_heads=getattr(text, "num_key_value_heads", None) or heads,
            head_dim=getattr(text, "head_dim", None) or hidden // heads,
            intermediate=width * experts,
            vocabulary=text.vocab_size,
        )

    def body_flops(self, lengths: Iterable[int]) -> float:
        """FLOPs of all layers over documents of these lengths, each attending causally to itself."""
        projections = self.hidden * self.head_dim * 2 * (self.heads + self.kv_heads)
        linear = projections + 3 * self.hidden * self.intermediate
        attention = self.heads * self.head_dim  # q Kᵀ and the weighted sum: 2 x 2 x T²/2
        return self.layers * sum(2.0 * linear * length + 2.0 * attention * length * length for length in lengths)

    def head_flops(self, rows: int) -> float:
        """FLOPs of the output layer for `rows` tokens."""
        return 2.0 * self.hidden * self.vocabulary * rows

    def attention_row_flops(self, rows: int, length: int) -> float:
        """FLOPs of computing the weights of `rows` queries over `length` keys once more, in all layers (Eq. 4)."""
        return 2.0 * self.layers * self.heads * self.head_dim * rows * length


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
