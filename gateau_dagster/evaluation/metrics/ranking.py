"""Parse and score a ranking that an answer gives as ID3 > ID1 > ID2."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence

_MARKS = re.compile(r"[\[\]:]")
_RANKING = re.compile(r"\d+(?:\s*>\s*\d+)*")


def ranked_ids(answer: str) -> list[str]:
    """Return the ids of the longest ranking in an answer, each once; empty where there is no number.

    Brackets, colons and the word ID are removed.
    """
    bare = _MARKS.sub("", answer).lower().replace("id", "")
    longest = max((match.group() for match in _RANKING.finditer(bare)), key=len, default="")
    return list(dict.fromkeys(each.strip() for each in longest.split(">") if each.strip()))


def ndcg(ranked: Sequence[str], relevance: Mapping[str, int], *, depth: int) -> float:
    """Return the normalised discounted cumulative gain of the first `depth`, 0 to 1; the gain is the relevance itself.

    An unknown id has no gain; without any relevance the value is 0.
    """

    def gain(values: Sequence[int]) -> float:
        return math.fsum(value / math.log2(place + 2) for place, value in enumerate(values[:depth]))

    best = gain(sorted(relevance.values(), reverse=True))
    return gain([relevance.get(each, 0) for each in ranked]) / best if best else 0.0
