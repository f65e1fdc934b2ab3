"""Which texts of many are one and the same but for small changes: groups of near-duplicates."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence

import numpy as np

from gateau_dagster.data.shingles import Sketch, similarity


def near_duplicates(sketches: Sequence[Sketch], least: float) -> list[int]:
    """The group of each text, by its first member; what two texts of a group have in common may go by way of others.

    Every pair whose `similarity` is at least `least` is joined, though few pairs are looked at: two such texts share
    one of the hashes that are rarest in all of them (`_rarest`).
    """
    first = list(range(len(sketches)))

    def group(number: int) -> int:
        while first[number] != number:
            first[number] = first[first[number]]
            number = first[number]
        return number

    holders: dict[int, list[int]] = defaultdict(list)
    for number, rarest in enumerate(_rarest(sketches, least)):
        for other in sorted({other for value in rarest for other in holders[value]}):
            one, two = sorted((group(other), group(number)))
            if one != two and similarity(sketches[other], sketches[number]) >= least:
                first[two] = one
        for value in rarest:
            holders[value].append(number)
    return [group(number) for number in range(len(sketches))]


def _rarest(sketches: Sequence[Sketch], least: float) -> Iterator[list[int]]:
    """Of each sketch the hashes that other texts are looked up by, numbered; those of no other text are left out.

    Texts that are alike have at least ceil(`least` * n) of a sketch's n hashes in common, so of any n + 1 - that many
    one at least. The rarest of them: a phrase that stands in every text brings no pairs.
    """
    if not sketches:
        return
    _, numbers, counts = np.unique(np.concatenate(sketches), return_inverse=True, return_counts=True)
    ends = np.cumsum([each.size for each in sketches])
    for end, each in zip(ends, sketches, strict=True):
        mine = numbers[end - each.size : end]
        rising = mine[np.lexsort((mine, counts[mine]))]
        looked_up = rising[: each.size + 1 - math.ceil(least * each.size - 1e-9)]
        yield looked_up[counts[looked_up] > 1].tolist()
