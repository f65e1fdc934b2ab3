"""Small tables with the promised columns, and slow twins: sample by sample and pair by pair."""

import math
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import polars as pl

from gateau_dagster import tables
from gateau_dagster.config.selection import PRESETS, Preset, RuleConfig
from gateau_dagster.selection.presets import PRESET_FUNCTIONS, Measures


def slow_combine(
    short: pl.DataFrame, long: pl.DataFrame, cam: pl.DataFrame, *, preset: Preset, alpha: float
) -> pl.DataFrame:
    """`combine` by dictionaries and Python's sort."""
    one, two, three = ({row["sample_id"]: row for row in frame.to_dicts()} for frame in (short, long, cam))
    ids = sorted(one.keys() & two.keys() & three.keys())
    measures = Measures(
        perplexity_short=np.array([one[name]["perplexity"] for name in ids]),
        perplexity_long=np.array([two[name]["perplexity"] for name in ids]),
        probability_short=np.array([one[name]["mean_probability"] for name in ids]),
        probability_long=np.array([two[name]["mean_probability"] for name in ids]),
        cas=np.array([three[name]["cas"] for name in ids], dtype=np.float64),
        far_gain=np.array([three[name]["far_gain"] for name in ids], dtype=np.float64),
    )
    rows = [
        {"sample_id": name, "perplexity_short": one[name]["perplexity"], "perplexity_long": two[name]["perplexity"]}
        for name in ids
    ]
    for name in PRESETS:
        scores = PRESET_FUNCTIONS[name](measures)
        places = _places(ids, scores.hmp.tolist(), scores.cas.tolist(), scores.score(alpha).tolist())
        for index, row in enumerate(rows):
            cas = float(scores.cas[index])
            values: dict[str, Any] = {"hmp": scores.hmp[index], "cas": None if math.isnan(cas) else cas}
            values |= {"score": scores.score(alpha)[index], "rank": places[index]}
            row.update({f"{kind}_{name}": value for kind, value in values.items()})
            row.update(values if name == preset else {})
    for name, row in zip(ids, rows, strict=True):
        row.update({key: two[name][key] for key in ("context_tokens", "response_tokens")})
        row["probability_short"] = one[name]["mean_probability"]
        row["probability_long"] = two[name]["mean_probability"]
        row["segments"] = three[name]["segments"]
    return pl.DataFrame(sorted(rows, key=lambda row: row["rank"]), infer_schema_length=None)


def _places(ids: list[str], hmp: list[float], cas: list[float], score: list[float]) -> list[int]:
    keys = [
        (math.isnan(c), -s, -h if math.isnan(c) else 0.0, name)
        for name, h, c, s in zip(ids, hmp, cas, score, strict=True)
    ]
    return [1 + sum(other < key for other in keys) for key in keys]


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


def perplexity_table(
    perplexity: Sequence[float], *, context_tokens: Sequence[int] | int = 8, ids: Sequence[str] | None = None
) -> pl.DataFrame:
    """A perplexity table of samples s0, s1, ..., whose tokens all have the same probability."""
    count = len(perplexity)
    contexts = [context_tokens] * count if isinstance(context_tokens, int) else list(context_tokens)
    names = list(ids) if ids is not None else [f"s{index}" for index in range(count)]
    return pl.DataFrame(
        {
            "sample_id": names,
            "digest": [f"digest of {name}" for name in names],
            "perplexity": [float(value) for value in perplexity],
            "mean_nll": [math.log(value) for value in perplexity],
            "context_tokens": contexts,
            "response_tokens": [3] * count,
            "truncated_tokens": [0] * count,
            "token_probability": [[1 / value] * 3 for value in perplexity],
            "mean_probability": [1 / value for value in perplexity],
        },
        schema=tables.schema(tables.PERPLEXITY),
    )


def cam_table(
    segment_perplexity: Sequence[Sequence[float]],
    cas: Sequence[float | None],
    ids: Sequence[str] | None = None,
    far_gain: Sequence[float | None] | None = None,
) -> pl.DataFrame:
    """A cam table of samples s0, s1, ...; `far_gain` is a quarter of CAS unless it is given."""
    names = list(ids) if ids is not None else [f"s{index}" for index in range(len(cas))]
    return pl.DataFrame(
        {
            "sample_id": names,
            "digest": [f"digest of {name}" for name in names],
            "segments": [len(values) for values in segment_perplexity],
            "segment_perplexity": [list(values) for values in segment_perplexity],
            "segment_attention": [[0.1] * len(values) for values in segment_perplexity],
            "cas": list(cas),
            "near_segments": [min(len(values), 1) for values in segment_perplexity],
            "no_context_probability": [[0.2, 0.3, 0.1]] * len(names),
            "near_probability": [[0.2, 0.5, 0.1]] * len(names),
            "far_probability": [[0.1, 0.7, 0.0]] * len(names),
            "far_segment": [[None, 0, None]] * len(names),
            "segment_gain": [[0.2] * len(values) for values in segment_perplexity],
            "far_gain": far_gain or [None if value is None else value / 4 for value in cas],
            "context_tokens": [None] * len(names),
            "tail_tokens": [None] * len(names),
            "segment_probability": [None] * len(names),
        },
        schema=tables.schema(tables.CAM),
    )
