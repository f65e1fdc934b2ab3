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


def slow_pfs(matrix: torch.Tensor, earlier: int, later: int, length: int, program: bool) -> float:
    """Eq. 2 for one layer [H, T, T]: what the span that starts at token `later` pays to the one at `earlier`."""
    total = 0.0
    for head in range(matrix.shape[0]):
        for row in range(later, later + length):
            weights = matrix[head, row]
            seen = weights[:later].sum().item() if program else 1.0
            received = weights[earlier : earlier + length].sum().item()
            total += received / seen if seen else 0.0
    return total / matrix.shape[0]


def slow_pairs(
    tokens: int, *, length: int, m: int, n: int, d: int, d_later: int, n0: int, program: bool
) -> list[tuple[int, list[int]]]:
    """Each scored span with the spans it looks at, by their first tokens, ascending."""
    if program:
        return slow_program_pairs(tokens, length=length, keep=m * length, interval=d * length, stride=d_later * length)
    first = tokens - tokens // length * length  # the spans end where the sample does
    pairs = []
    for j in range(n0, tokens // length, d_later):
        earlier = [m + k * d for k in range((j - m - n - 1) // d + 1)]
        pairs.append((first + j * length, [first + i * length for i in earlier]))
    return pairs


def slow_program_pairs(
    tokens: int, *, length: int, keep: int, interval: int, stride: int
) -> list[tuple[int, list[int]]]:
    """The same as the authors' program has it, which counts tokens: all arguments are numbers of tokens."""
    pairs, start = [], tokens - length
    while start > keep + 4 * interval:
        earlier, place = [], start - interval
        while place >= keep:
            earlier.append(place)
            place -= interval
        pairs.append((start, sorted(earlier)))
        start -= stride
    return sorted(pairs)


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
    tokens = matrices[0].shape[-1]
    first, spans = tokens % length, tokens // length
    pairs = slow_pairs(tokens, length=length, m=m, n=n, d=d, d_later=d_later, n0=n0, program=program)
    if not pairs:
        return None
    layers = []
    for matrix in matrices:
        total = 0.0
        for later, all_earlier in pairs:
            scores = [slow_pfs(matrix, earlier, later, length, program) for earlier in all_earlier]
            mean, freedom = sum(scores) / len(scores), len(scores) - (1 if program else 0)
            afs = math.sqrt(sum((score - mean) ** 2 for score in scores) / freedom) if deviation else 1.0
            unit = tokens if program else length  # of a distance: the whole sample, or a span
            distances = [(later - earlier) / unit if interval else 1.0 for earlier in all_earlier]
            afs *= sum(score * distance for score, distance in zip(scores, distances, strict=True))
            if program:
                total += (later / tokens if position else 1.0) * afs / len(pairs)
            else:
                total += ((later - first) / length / spans if position else 1.0) * afs
        layers.append(total)
    return sum(layers) / len(layers)
