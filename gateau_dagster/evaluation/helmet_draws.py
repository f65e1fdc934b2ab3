"""Which rows and examples HELMET draws: by its seed, with the generators that its code draws with."""

from __future__ import annotations

import hashlib
import math
import random
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

SEED = 42
Row = Mapping[str, Any]
Each = TypeVar("Each")


def shuffled(rows: Sequence[Each], seed: int = SEED) -> list[Each]:
    """In the order in which a data set of the package datasets is shuffled."""
    return [rows[place] for place in np.random.default_rng(seed).permutation(len(rows))]


def drawn_by_key(rows: Sequence[Row], key: str, most: int) -> list[Row]:
    """Every row of `most` different values of `key`."""
    known = sorted({row[key] for row in rows})
    drawn = {*random.Random(SEED).sample(known, min(most, len(known)))}
    return [row for row in rows if row[key] in drawn]


def seed_of(text: str, seed: int = 0) -> int:
    """A question's own."""
    return (int(hashlib.sha256(text.encode()).hexdigest(), 16) + seed) % 2**31


def examples(rows: Sequence[Row], key: str, own: Any, count: int) -> list[Row]:
    """`count` of different values of `key`, for the question whose value is `own`; fewer where there are no more."""
    found: dict[Any, Row] = {}
    for row in shuffled(rows, seed_of(str(own))):
        if len(found) == count:
            break
        found.setdefault(row[key], row)
    return [*found.values()]


def balanced(labels: Sequence[Hashable], count: int, seed: int) -> list[int]:
    """Places of `count` rows in rounds, each of which has every label once, in an order of its own."""
    rng, of_label = random.Random(seed), dict[Hashable, list[int]]()
    for place, label in enumerate(labels):
        of_label.setdefault(label, []).append(place)
    rounds: list[list[int]] = [[] for _ in range(math.ceil(count / len(of_label)))]
    for places in of_label.values():
        drawn = rng.sample(places, len(rounds) % len(places))
        while len(drawn) < len(rounds):  # a label with fewer rows than rounds has some of them again
            drawn += rng.sample(places, min(len(rounds) - len(drawn), len(places)))
        for each, place in zip(rounds, drawn, strict=True):
            each.append(place)
    for each in rounds:
        rng.shuffle(each)
    return [place for each in rounds for place in each][:count]
