"""Sample by sample and pair by pair: what the fast path over columns and shards must find."""

import math
from typing import Any

import numpy as np
import polars as pl

from gateau_dagster.config.selection import PRESETS, Preset
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
