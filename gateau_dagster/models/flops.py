"""Count the arithmetic of a decoder's pass from its shape and the lengths it reads; multiply-adds count as two.

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
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, kw_only=True)
class LayerWork:
    """The multiply-adds of one layer for one token.

    token: all but its attention to others. spared: the part of these that the last layer can skip for a token whose
    output is not read. width: heads times head size of its softmax attention; 0 if it has none.
    """

    token: float
    spared: float
    width: int


Lengths: TypeAlias = npt.NDArray[np.float64]


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
    each: tuple[LayerWork, ...] = ()  # for models whose layers differ (shapes.py), instead of the sizes above
    outside: float = 0.0  # with `each`: multiply-adds of a token outside the layers and the output layer

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


def whole_text_flops(lengths: Lengths, weights: int, layers: int, hidden: int) -> Lengths:
    """Return the FLOPs of a model that reads a text of each length as a whole, all tokens attending to all.

    weights: number of weights in its matrices, without the embedding; its `layers` are `hidden` wide.
    """
    return 2.0 * weights * lengths + 4.0 * layers * hidden * lengths**2
