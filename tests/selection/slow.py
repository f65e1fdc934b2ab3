"""Sample by sample and pair by pair: what the fast path over flat arrays and shards must find."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import polars as pl

from gateau_dagster.config.selection import PRESETS, Preset
from gateau_dagster.selection.presets import PRESET_FUNCTIONS, Measures


def slow_near_segments(context: int, visible: int, length: int) -> int:
    """Token by token: the segments that hold a token theta_A saw."""
    return len({token // length for token in range(context - visible, context)})


def slow_far_gains(
    contexts: Sequence[int], visible: Sequence[int], perplexities: Sequence[Sequence[float]], length: int
) -> list[float]:
    """The best far probability less the best near one, where there are two segments."""
    hides = any(context > seen for context, seen in zip(contexts, visible, strict=True))
    gains = []
    for context, seen, values in zip(contexts, visible, perplexities, strict=True):
        near = slow_near_segments(context, seen, length) if hides else 1
        probabilities = [1 / value for value in values]
        far, close = probabilities[: len(values) - near], probabilities[len(values) - near :]
        gain = max(0.0, max(far) - max([0.0, *close])) if far else 0.0
        gains.append(gain if len(values) > 1 else math.nan)
    return gains


def slow_combine(
    short: pl.DataFrame, long: pl.DataFrame, cam: pl.DataFrame, *, preset: Preset, alpha: float, segment_length: int
) -> pl.DataFrame:
    """`combine` by dictionaries and Python's sort."""
    one, two, three = ({row["sample_id"]: row for row in frame.to_dicts()} for frame in (short, long, cam))
    ids = sorted(one.keys() & two.keys() & three.keys())
    measures = Measures(
        perplexity_short=np.array([one[name]["perplexity"] for name in ids]),
        perplexity_long=np.array([two[name]["perplexity"] for name in ids]),
        cas=np.array([three[name]["cas"] for name in ids], dtype=np.float64),
        far_gain=np.array(
            slow_far_gains(
                [two[name]["context_tokens"] for name in ids],
                [one[name]["context_tokens"] for name in ids],
                [three[name]["segment_perplexity"] for name in ids],
                segment_length,
            )
        ),
    )
    rows = [
        {
            "sample_id": name,
            "perplexity_short": one[name]["perplexity"],
            "perplexity_long": two[name]["perplexity"],
        }
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
        row["segments"] = three[name]["segments"]
    return pl.DataFrame(sorted(rows, key=lambda row: row["rank"]), infer_schema_length=None)


def _places(ids: list[str], hmp: list[float], cas: list[float], score: list[float]) -> list[int]:
    keys = [
        (math.isnan(c), -s, -h if math.isnan(c) else 0.0, name)
        for name, h, c, s in zip(ids, hmp, cas, score, strict=True)
    ]
    return [1 + sum(other < key for other in keys) for key in keys]
