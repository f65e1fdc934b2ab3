"""Invented methods over invented samples."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

SOURCES = ("book", "code", "paper", None)


@dataclass(frozen=True, kw_only=True)
class Named:
    """A method as the comparison sees it."""

    name: str
    title: str = "What a high score means."
    source: str = "A paper, Eq. 1"


def described(*names: str) -> list[Any]:
    """Methods as the comparison sees them; of a Method these are class variables."""
    return [Named(name=name) for name in names]


def frame(count: int = 60, *, seed: int = 0, nulls: float = 0.2, longest: int = 12_000) -> pl.DataFrame:
    """Methods a, b (has ties and nulls), c (nulls), nothing (scores no sample), flat (one score for all)."""
    rng = np.random.default_rng(seed)
    base = rng.normal(size=count)
    ties: list[int | None] = [int(value) for value in rng.integers(0, 5, count)]
    holes = [[bool(hole) for hole in rng.random(count) < nulls] for _ in range(2)]
    c = base + rng.normal(size=count)
    return pl.DataFrame(
        {
            "sample_id": [f"s{number:03d}" for number in rng.permutation(count)],
            "source": [SOURCES[number] for number in rng.integers(0, len(SOURCES), count)],
            "context_tokens": rng.integers(0, longest, count),
            "response_tokens": rng.integers(1, 300, count),
            "perplexity": [
                None if hole else float(value) for hole, value in zip(holes[0], rng.random(count) + 1, strict=True)
            ],
            "score:a": base,
            "score:b": [None if hole else value for hole, value in zip(holes[0], ties, strict=True)],
            "score:c": [None if hole else float(value) for hole, value in zip(holes[1], c, strict=True)],
            "score:nothing": pl.Series([None] * count, dtype=pl.Float64),
            "score:flat": [0.5] * count,
        }
    )


NAMES = ("a", "b", "c", "nothing", "flat")
