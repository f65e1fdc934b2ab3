"""Random order: the baseline against which the value of a selection is measured."""

import polars as pl
from pydantic import Field

from gateau_dagster.config.base import Section
from gateau_dagster.methods.method import Method, Reads, Tables
from gateau_dagster.selection.statistics import uniform


class RandomOptions(Section):
    """The seed of the random order."""

    seed: int = Field(default=0, description="Another seed is another order.")


class RandomOrder(Method):
    """Score by a number that is drawn for each sample."""

    name = "random"
    title = "Nothing: the order is drawn by lot."
    source = "baseline"
    per_sample = True
    options: RandomOptions

    def reads(self) -> Reads:
        return {"raw_long_sft": ["sample_id"]}

    def score(self, tables: Tables) -> pl.DataFrame:
        ids = tables["raw_long_sft"]["sample_id"]
        drawn = [uniform(sample_id, self.options.seed) for sample_id in ids]
        return pl.DataFrame({"sample_id": ids, "score": drawn}, schema={"sample_id": pl.String, "score": pl.Float64})
