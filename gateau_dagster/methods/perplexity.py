"""Perplexity Guidance: prefer the responses that the long model finds hardest, whatever the reason."""

import polars as pl
from pydantic import Field

from gateau_dagster.config.base import Section
from gateau_dagster.methods.method import Method, Reads, Tables


class PerplexityOptions(Section):
    """The model whose perplexity is read."""

    model: str = Field(default="long", description="The causal model whose perplexity it is.")


class Perplexity(Method):
    """Score by PPL(y|c,x) of Eq. 1; the paper takes the samples with the highest."""

    name = "perplexity"
    title = "The long model finds the response hard to predict, for whatever reason."
    source = "GATEAU, Eq. 1 and appendix B (Perplexity Guidance)"
    per_sample = True
    options: PerplexityOptions

    def reads(self) -> Reads:
        return {f"perplexity/{self.options.model}": ["sample_id", "perplexity"]}

    def score(self, tables: Tables) -> pl.DataFrame:
        return tables[f"perplexity/{self.options.model}"].select("sample_id", score="perplexity")
