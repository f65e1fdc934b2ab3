"""Delta perplexity the slow obvious way: one segment or pair at a time, eager float64, plain loops."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch

Perplexities = Mapping[tuple[int, int], float]


def slow_perplexity(model: Any, before: Sequence[int], segment: Sequence[int]) -> float:
    """exp of the mean NLL of all but the segment's first token; `model`: from reference_model."""
    ids = [*before, *segment]
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([ids]), use_cache=False).logits[0].double()
    total = 0.0
    for place in range(len(before) + 1, len(ids)):
        total -= torch.log_softmax(logits[place - 1], dim=0)[ids[place]].item()
    return math.exp(total / (len(segment) - 1))


def slow_perplexities(
    model: Any, ids: Sequence[int], length: int, pairs: Sequence[tuple[int, int]]
) -> tuple[list[float], dict[tuple[int, int], float]]:
    """P(i) of every whole segment and P(i|j) of the pairs."""
    segments = [list(ids[k * length : (k + 1) * length]) for k in range(len(ids) // length)]
    alone = [slow_perplexity(model, [], segment) for segment in segments]
    return alone, {(i, j): slow_perplexity(model, segments[j], segments[i]) for i, j in pairs}


def slow_lds(
    alone: Sequence[float],
    behind: Perplexities,
    *,
    segments: int,
    threshold: float = 0.1,
    alpha: float = 1.0,
    beta: float = 1.0,
    program: bool = False,
) -> float:
    """The score, pair by pair; `segments`: N of the distance."""
    total = 0.0
    for (i, j), perplexity in behind.items():
        strength = (alone[i] - perplexity) / alone[i]
        if strength > threshold:
            distance = min(1.0, (i - j) / (segments - 1))
            terms = strength + distance if program else alpha * strength + beta * distance
            total += terms * slow_specificity(alone, behind, i)
    return total if program else total / ((alpha + beta) * len(behind))


def slow_specificity(alone: Sequence[float], behind: Perplexities, i: int) -> float:
    """1 - H / log n_i, clipped."""
    gains = [alone[i] - perplexity for (later, _), perplexity in behind.items() if later == i]
    if len(gains) == 1:
        return 1.0
    largest = max(gains)
    weights = [math.exp(gain - largest) for gain in gains]
    shares = [weight / sum(weights) for weight in weights]
    entropy = -sum(share * math.log(share) for share in shares if share > 0)
    return min(1.0, max(0.0, 1 - entropy / math.log(len(gains))))
