"""Compute LongAttn's two figures of a text: how much of a layer's attention goes far back, and how unevenly.

Keys at a distance of T - m or more are far, m = 3·floor(T/4), in a text of T tokens. The layer's weights w (T x T,
causal) count where key <= query - (T - m); the others count as zero. The model runs up to that layer and no further.
Its weights are computed in blocks of heads and rows, so memory is linear in T.

Source: Wu et al. 2025, LongAttn (arXiv 2502.16860); the figures are those of the authors' program.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from gateau_dagster.errors import GateauError
from gateau_dagster.models.attention_kernels import AttentionSpec, attention_rows, row_blocks
from gateau_dagster.models.context_attention import require_attention_interface
from gateau_dagster.models.flops import ModelShape
from gateau_dagster.models.loaded import ForwardWork, LoadedModel
from gateau_dagster.models.mask_pattern import MaskPattern, UnknownAttentionError
from gateau_dagster.models.packing import packed_states
from gateau_dagster.models.shapes import known_shape
from gateau_dagster.scoring.sample_table import Numbers
from gateau_dagster.scoring.span_attention import row_pieces

Vector = npt.NDArray[np.float64]
WHAT = "attention to what is far"


@dataclass(frozen=True, kw_only=True)
class LongAttention:
    """The figures of each head, float64 [heads] each.

    proportion: sum of the far weights over T. variance: over all T² weights, near ones as 0.
    """

    proportion: Vector
    variance: Vector


# An exception, because nothing else ends a model's forward pass in its middle. The layers above would be computed for
# nothing: the method reads one of them.
class _SeenError(Exception):
    """Raised to end the pass after the layer that counts; not a failure."""


def distance_of_far(tokens: int) -> int:
    """Return T - m: keys at least this many tokens before a query are far."""
    return tokens - 3 * (tokens // 4)


@torch.no_grad()
def long_attention(
    loaded: LoadedModel, ids: Sequence[int], *, layer: int, work: ForwardWork | None = None
) -> LongAttention:
    """Return the figures of a text's tokens `ids` [T], T at least 4, in attention layer number `layer` from 0.

    The softmax is in float32 (float64 for a float64 model), as the model computes it: with its sliding window, soft cap
    or sinks. `work` is charged for the layers and for the rows.

    Raises GateauError for a model whose attention cannot be read, or that has no such layer.
    """
    require_attention_interface(loaded, WHAT)
    collector = _LayerFigures(layer=layer, tokens=len(ids))
    try:
        packed_states(loaded, [ids], collector.observe)
    except _SeenError:
        pass
    except UnknownAttentionError as error:
        raise GateauError("models.no_attention", f"{WHAT}: {loaded.name}: {error}: take another model") from error
    if collector.found is None:
        raise GateauError(
            "methods.layer",
            f"selection.options.longattn.layer: {layer}, but {loaded.name} has {collector.calls} layers with attention",
        )
    if work is not None:
        shape, tokens = known_shape(loaded.model.config), np.array([float(len(ids))])
        work.add(len(ids), 0.0 if shape is None else float(long_attention_flops(shape, tokens, layer)[0]))
    return collector.found


def long_attention_flops(shape: ModelShape, tokens: Numbers, layer: int) -> Numbers:
    """Return the FLOPs of texts of these lengths [samples]: the layers up to `layer`, and the recomputed far rows."""
    far = 3.0 * np.floor(tokens / 4)
    layers = shape.pass_flops(tokens) * (layer + 1) / shape.layers
    return layers + far * shape.attention_row_flops_each(tokens - far / 2) / shape.layers


@dataclass(kw_only=True)
class _LayerFigures:
    """The figures of the layer that counts, and the number of layers seen."""

    layer: int
    tokens: int
    calls: int = 0
    found: LongAttention | None = field(default=None)

    def observe(self, query: Tensor, key: Tensor, pattern: MaskPattern, how: AttentionSpec) -> None:
        """Read a layer's query [H, T, D] and key [H_kv, T, D], and end the pass after the layer that counts."""
        assert query.shape[1] == self.tokens
        self.calls += 1
        if self.calls <= self.layer:
            return
        sums = query.new_zeros(2, query.shape[0], dtype=torch.float64)
        far = distance_of_far(self.tokens)
        for piece, rows in row_pieces(self.tokens, (far, self.tokens), pattern):
            _add(sums, query[:, piece], key[:, piece], rows, how, far)
        total, squares = sums.cpu().numpy()
        # From two sums, since the T² weights are never there at once. They are in float64: the variance is a small
        # difference of large sums.
        count = float(self.tokens) ** 2
        self.found = LongAttention(proportion=total / self.tokens, variance=(squares - total**2 / count) / (count - 1))
        raise _SeenError


def _add(sums: Tensor, query: Tensor, key: Tensor, rows: tuple[int, int], how: AttentionSpec, far: int) -> None:
    """Add to `sums` [2, H] the far weights of the query rows and their squares."""
    groups = query.shape[0] // key.shape[0]
    for heads, some in row_blocks(query, key.shape[0], *rows, how):
        first, end = how.first_key(some.start), some.stop - far  # no row of the block sees a far key after it
        if end <= first:
            continue
        weights = attention_rows(query, key, heads, some, how)[..., : end - first]  # [h, G, R, K]
        last = torch.arange(some.start, some.stop, device=weights.device) - far
        near = torch.arange(first, end, device=weights.device) > last[:, None]
        kept = weights.masked_fill(near, 0.0).double()
        own = slice(heads.start * groups, heads.stop * groups)
        sums[0, own] += kept.sum(dim=(-1, -2)).flatten()
        sums[1, own] += kept.square_().sum(dim=(-1, -2)).flatten()
