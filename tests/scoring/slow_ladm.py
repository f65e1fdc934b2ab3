"""LADM's equations with plain loops over whole attention matrices: what the fast path must find."""

import math
from collections.abc import Sequence

import torch

from tests.scoring.reference import reference_model


def eager_matrices(model: object, ids: Sequence[int]) -> list[torch.Tensor]:
    """Every layer's weights [H, T, T] in float64."""
    with torch.no_grad():
        out = reference_model(model)(input_ids=torch.tensor([list(ids)]), output_attentions=True, use_cache=False)
    return [matrix[0] for matrix in out.attentions]


def slow_pfs(matrix: torch.Tensor, i: int, j: int, length: int, program: bool) -> float:
    """Eq. 2 for one layer [H, T, T]; the spans end where the sample does."""
    heads, tokens, _ = matrix.shape
    first = tokens - tokens // length * length
    total = 0.0
    for head in range(heads):
        for row in range(first + j * length, first + (j + 1) * length):
            weights = matrix[head, row]
            seen = weights[: first + j * length].sum().item() if program else 1.0
            received = weights[first + i * length : first + (i + 1) * length].sum().item()
            total += received / seen if seen else 0.0
    return total / heads


def slow_pairs(
    spans: int, *, m: int, n: int, d: int, d_later: int, n0: int, program: bool
) -> list[tuple[int, list[int]]]:
    """Each j of Eq. 5 with its i: m, m+d, ..., m+Ld."""
    later = []
    j = spans - 1 if program else n0
    while n0 <= j < spans:
        later.append(j)
        j += -d_later if program else d_later
    return [(j, [m + k * d for k in range((j - m - n - 1) // d + 1)]) for j in sorted(later)]


def slow_cds(
    matrices: Sequence[torch.Tensor],
    *,
    length: int,
    m: int,
    n: int,
    d: int,
    d_later: int,
    n0: int,
    program: bool = False,
    deviation: bool = True,
    interval: bool = True,
    position: bool = True,
) -> float | None:
    """Eqs. 2-5 of each layer, then their mean."""
    spans = matrices[0].shape[-1] // length
    pairs = slow_pairs(spans, m=m, n=n, d=d, d_later=d_later, n0=n0, program=program)
    if not pairs:
        return None
    layers = []
    for matrix in matrices:
        total = 0.0
        for j, earlier in pairs:
            scores = [slow_pfs(matrix, i, j, length, program) for i in earlier]
            mean = sum(scores) / len(scores)
            afs = math.sqrt(sum((score - mean) ** 2 for score in scores) / len(scores)) if deviation else 1.0
            intervals = [(j - i) / (spans if program else 1) if interval else 1.0 for i in earlier]
            afs *= sum(score * interval for score, interval in zip(scores, intervals, strict=True))
            if program:
                total += afs / len(pairs)
            else:
                total += (j / spans if position else 1.0) * afs
        layers.append(total)
    return sum(layers) / len(layers)
