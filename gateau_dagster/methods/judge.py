"""Rate every sample with a language model, by the rubric of GATEAU's five characteristics.

The ratings are the table `sample_ratings`, which `evaluation.judge` answers: one request per sample and characteristic.
Each answer is stored, so that a repeated request costs nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl
from pydantic import Field

from gateau_dagster.config.base import Section
from gateau_dagster.config.judge import CHARACTERISTIC_NAMES, Characteristic
from gateau_dagster.errors import GateauError
from gateau_dagster.methods.method import Method, Reads, Tables

if TYPE_CHECKING:
    from gateau_dagster.config import Config

SAMPLE_RATINGS = "sample_ratings"


class JudgeOptions(Section):
    """The characteristics that are rated."""

    characteristics: list[Characteristic] = Field(
        default=[*CHARACTERISTIC_NAMES],
        min_length=1,
        description="Whose mean is the score; a request a sample each. Necessity is how much the context is needed.",
    )


def _reads(config: Config, options: JudgeOptions) -> Reads:
    del config, options
    return {SAMPLE_RATINGS: ["sample_id", "characteristic", "rating"]}


def _score(found: Tables, config: Config, options: JudgeOptions) -> pl.DataFrame:
    """Return the mean rating; `sample_ratings` rejects a sample that misses one of them."""
    del config, options
    return found[SAMPLE_RATINGS].group_by("sample_id").agg(score=pl.col("rating").mean())


def _check(config: Config, options: JudgeOptions) -> None:
    if config.evaluation.judge is None:
        raise GateauError(
            "evaluation.judge: the method judge has samples rated by one, and none is given. Give base_url and model "
            "of an OpenAI-compatible server, and the environment variable with its key"
        )
    if len({*options.characteristics}) < len(options.characteristics):
        raise GateauError("selection.options.judge.characteristics: names one twice")


METHOD = Method(
    name="judge",
    title="A language model rates context, instruction and response highly.",
    source="GATEAU, figures 11 to 15: the rubric; the words are ours",
    per_sample=True,
    options=JudgeOptions,
    reads=_reads,
    score=_score,
    check=_check,
)
