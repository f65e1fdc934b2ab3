"""The selection rules and what they are made of as plain loops: what the tests compare with."""

import math
from collections.abc import Collection
from typing import Any

import polars as pl

from gateau_dagster.config.selection import RuleConfig

Row = dict[str, Any]


def ranking(
    sources: list[str], *, tokens: list[int] | None = None, unscored: Collection[int] = (), **columns: Any
) -> pl.DataFrame:
    """Samples s00, s01, ... of these sources, the first one best; those in `unscored` have no score."""
    numbers = range(len(sources))
    return pl.DataFrame(
        {
            "sample_id": [f"s{number:02d}" for number in numbers],
            "score": [None if number in unscored else 1.0 - number / 100 for number in numbers],
            "rank": [None if number in unscored else number + 1 for number in numbers],
            "source": sources,
            "digest": [f"t{number:02d}" for number in numbers],
            "tokens": tokens or [10] * len(sources),
            **columns,
        },
        schema_overrides={"rank": pl.Int32, "score": pl.Float64, "tokens": pl.Int32},
    )


def slow_order(samples: pl.DataFrame) -> list[Row]:
    """Samples with a score, best first."""
    rows = [row for row in samples.iter_rows(named=True) if row["score"] is not None]
    return sorted(rows, key=lambda row: (row["rank"], row["sample_id"]))


def slow_token_budget(samples: pl.DataFrame, budget: int) -> list[str]:
    chosen, spent = [], 0
    for row in slow_order(samples):
        if spent + row["tokens"] > budget:
            break
        spent += row["tokens"]
        chosen.append(row["sample_id"])
    return chosen


def slow_per_source_tokens(samples: pl.DataFrame, budget: int) -> list[str]:
    """The percentage rises over every value at which some source gives one more."""
    sources = sorted(samples["source"].unique())
    sizes = {source: samples.filter(pl.col("source") == source).height for source in sources}
    ranked = slow_order(samples)
    events = []
    for source in sources:
        mine = [row for row in ranked if row["source"] == source]
        for number, row in enumerate(mine, start=1):
            # The least common multiple of all sizes makes percentages whole numbers.
            percentage = number * math.lcm(*sizes.values()) // sizes[source]
            events.append((percentage, row["rank"], row["sample_id"], row["tokens"]))
    chosen, spent = [], 0
    for _, rank, sample_id, tokens in sorted(events):
        if spent + tokens > budget:
            break
        spent += tokens
        chosen.append((rank, sample_id))
    return [sample_id for _, sample_id in sorted(chosen)]


def slow_beyond_the_best(samples: pl.DataFrame, most: int) -> dict[str, str]:
    """The samples that are no candidates, each with the best one of its document: counted down the ranking."""
    seen: dict[str, list[str]] = {}
    beyond = {}
    for row in slow_order(samples):
        better = seen.setdefault(row["document"], [])
        if len(better) >= most:
            beyond[row["sample_id"]] = better[0]
        better.append(row["sample_id"])
    return beyond


def slow_largest_remainder(weights: dict[str, int], count: int) -> dict[str, int]:
    """In whole numbers: count * weight = quota * total + remainder."""
    total = sum(weights.values())
    given = {name: count * weight // total for name, weight in weights.items()}
    remainders = {name: count * weight % total for name, weight in weights.items()}
    while sum(given.values()) < count:
        best = min(remainders, key=lambda name: (-remainders[name], name))
        given[best] += 1
        remainders[best] = -1
    return given


def slow_diverse(samples: pl.DataFrame, labels: dict[str, int], rule: RuleConfig) -> list[str]:
    ranked = [row["sample_id"] for row in slow_order(samples)]
    best = ranked[: rule.chosen(len(ranked))]
    pool = ranked if rule.cluster_from == "all" else [one for one in ranked if one not in best]
    chosen = set(best)
    for cluster in set(labels.values()):
        chosen |= set([one for one in pool if labels.get(one) == cluster][: rule.per_cluster])
    return [one for one in ranked if one in chosen]
