"""Rate every sample with a language model, by the rubric of GATEAU's five characteristics.

The ratings are the table `sample_ratings`, which `evaluation.judge` answers: one request per sample and characteristic.
Each answer is stored, so that a repeated request costs nothing.
"""

import polars as pl
from pydantic import Field

from gateau_dagster.config.base import Section
from gateau_dagster.errors import GateauError
from gateau_dagster.features.evaluation.config import evaluation_of
from gateau_dagster.features.evaluation.servers import CHARACTERISTIC_NAMES, Characteristic
from gateau_dagster.methods.method import Method, Reads, Tables

SAMPLE_RATINGS = "sample_ratings"


class JudgeOptions(Section):
    """The characteristics that are rated."""

    characteristics: list[Characteristic] = Field(
        default=[*CHARACTERISTIC_NAMES],
        min_length=1,
        description="Characteristics whose mean is the score; each is one request per sample. Necessity is how much "
        "the context is needed.",
    )


class JudgeRatings(Method):
    """Score by the mean rating; `sample_ratings` rejects a sample that misses one of them."""

    name = "judge"
    title = "A language model rates context, instruction and response highly."
    source = "GATEAU, figures 11 to 15: the rubric; the words are ours"
    per_sample = True
    options: JudgeOptions

    def reads(self) -> Reads:
        return {SAMPLE_RATINGS: ["sample_id", "characteristic", "rating"]}

    def score(self, tables: Tables) -> pl.DataFrame:
        return tables[SAMPLE_RATINGS].group_by("sample_id").agg(score=pl.col("rating").mean())

    def check(self) -> None:
        if evaluation_of(self.config).judge is None:
            raise GateauError(
                "evaluation.needs_judge",
                "evaluation.judge: the method judge needs a judge, and none is configured. Give base_url and model "
                "of an OpenAI-compatible server, and the environment variable with its key",
            )
        if len({*self.options.characteristics}) < len(self.options.characteristics):
            raise GateauError(
                "config.listed_twice", f"{self.place}.characteristics: lists a name twice: list each once"
            )
