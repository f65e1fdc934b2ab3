"""The comparison once more, as plain loops over dictionaries."""

import math
from collections.abc import Mapping, Sequence

import polars as pl

Scores = Mapping[str, float]


def scores_of(frame: pl.DataFrame, name: str) -> dict[str, float]:
    """Score by id, of those that have one."""
    return {key: value for key, value in frame.select("sample_id", f"score:{name}").iter_rows() if value is not None}


def order(scores: Scores) -> list[str]:
    """Ids, the best first, ties by id."""
    return sorted(scores, key=lambda key: (-scores[key], key))


def mean_rank(scores: Scores, key: str) -> float:
    below = sum(1 for value in scores.values() if value < scores[key])
    return below + (sum(1 for value in scores.values() if value == scores[key]) + 1) / 2


def spearman(first: Scores, second: Scores) -> float | None:
    ids = sorted(set(first) & set(second))
    one, two = ({key: scores[key] for key in ids} for scores in (first, second))
    x, y = ([mean_rank(scores, key) for key in ids] for scores in (one, two))
    if not ids:
        return None
    mx, my = sum(x) / len(x), sum(y) / len(y)
    sx = math.sqrt(sum((v - mx) ** 2 for v in x))
    sy = math.sqrt(sum((v - my) ** 2 for v in y))
    if sx == 0 or sy == 0:
        return None
    return sum((a - mx) * (b - my) for a, b in zip(x, y, strict=True)) / (sx * sy)


def kendall(first: Scores, second: Scores) -> float | None:
    """tau-b, pair by pair."""
    ids = sorted(set(first) & set(second))
    balance = untied_first = untied_second = 0
    for number, one in enumerate(ids):
        for two in ids[number + 1 :]:
            x, y = _sign(first[one] - first[two]), _sign(second[one] - second[two])
            balance += x * y
            untied_first += abs(x)
            untied_second += abs(y)
    return balance / math.sqrt(untied_first * untied_second) if untied_first and untied_second else None


def _sign(value: float) -> int:
    return (value > 0) - (value < 0)


def rank_spread(all_scores: Sequence[Scores], key: str) -> float:
    shares = [(order(scores).index(key) + 0.5) / len(scores) for scores in all_scores if key in scores]
    mean = sum(shares) / len(shares) if shares else 0.0
    return math.sqrt(sum((share - mean) ** 2 for share in shares) / len(shares)) if shares else 0.0
