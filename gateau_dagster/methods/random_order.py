"""Random order: the baseline against which the value of a selection is measured."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl
from pydantic import Field

from gateau_dagster.config.base import Section
from gateau_dagster.data.sample import text_digest
from gateau_dagster.methods.method import Method, Reads, Tables

if TYPE_CHECKING:
    from gateau_dagster.config import Config


class RandomOptions(Section):
    """The seed of the random order."""

    seed: int = Field(default=0, description="Another seed is another order.")


def uniform(sample_id: str, seed: int) -> float:
    """Return a number in [0, 1), a multiple of 2^-53, that depends only on id and seed, not on other samples."""
    return (int(text_digest((str(seed), sample_id))[:16], 16) >> 11) / 2**53


def _reads(config: Config, options: RandomOptions) -> Reads:
    del config, options
    return {"raw_long_sft": ["sample_id"]}


def _score(found: Tables, config: Config, options: RandomOptions) -> pl.DataFrame:
    del config
    ids = found["raw_long_sft"]["sample_id"]
    return pl.DataFrame(
        {"sample_id": ids, "score": [uniform(sample_id, options.seed) for sample_id in ids]},
        schema={"sample_id": pl.String, "score": pl.Float64},
    )


METHOD = Method(
    name="random",
    title="Nothing: the order is drawn by lot.",
    source="baseline",
    per_sample=True,
    options=RandomOptions,
    reads=_reads,
    score=_score,
)
