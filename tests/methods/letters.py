"""A method outside the package, with a table that its model computes, as `selection.plugins` of tests names it."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import polars as pl

from gateau_dagster import tables
from gateau_dagster.config.base import Section
from gateau_dagster.data.sample import Reject, Sample
from gateau_dagster.methods.method import Method, Reads, Tables
from gateau_dagster.scoring.sample_table import Row, Running, SampleTable

COLUMNS = (tables.SAMPLE_ID, tables.DIGEST, tables.Column(name="letters", dtype=pl.Int32(), description="Letters."))


class LettersOptions(Section):
    """The model that counts."""

    model: str = "long"


class Letters(Method):
    """Score by the letters of the response, and among equals by the sample's number."""

    name = "letters"
    title = "It has many letters."
    source = "this test"
    per_sample = True
    options: LettersOptions

    def tables(self) -> Sequence[SampleTable]:
        model = self.options.model
        return [
            SampleTable(asset=f"letters/{model}", model=model, columns=COLUMNS, description="Letters.", score=self.rows)
        ]

    def rows(self, loaded: Any, samples: Iterable[Sample], running: Running) -> Iterator[Row | Reject]:
        for sample in samples:
            running.work.add(len(sample.response), 1.0)
            if sample.sample_id == "s00001":
                yield Reject(sample_id=sample.sample_id, reason="it is the second")
            else:
                letters = len(sample.response) + 100 * int(sample.sample_id[1:])
                yield {"sample_id": sample.sample_id, "digest": sample.digest, "letters": letters}

    def reads(self) -> Reads:
        return {f"letters/{self.options.model}": ["sample_id", "letters"]}

    def score(self, tables: Tables) -> pl.DataFrame:
        return tables[f"letters/{self.options.model}"].select("sample_id", score=pl.col("letters").cast(pl.Float64))
