"""Perplexity Guidance: prefer the responses that the long model finds hardest, whatever the reason."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl
from pydantic import Field

from gateau_dagster.config.base import Section
from gateau_dagster.methods.method import Method, Reads, Tables, check_model

if TYPE_CHECKING:
    from gateau_dagster.config import Config


class PerplexityOptions(Section):
    """The model whose perplexity is read."""

    model: str = Field(default="long", description="The causal model whose perplexity it is.")


def _reads(config: Config, options: PerplexityOptions) -> Reads:
    del config
    return {f"perplexity/{options.model}": ["sample_id", "perplexity"]}


def _score(found: Tables, config: Config, options: PerplexityOptions) -> pl.DataFrame:
    """Return PPL(y|c,x) of Eq. 1; the paper takes the samples with the highest."""
    del config
    return found[f"perplexity/{options.model}"].select("sample_id", score="perplexity")


def _check(config: Config, options: PerplexityOptions) -> None:
    check_model(config, options.model, "causal", place="selection.options.perplexity.model")


METHOD = Method(
    name="perplexity",
    title="The long model finds the response hard to predict, for whatever reason.",
    source="GATEAU, Eq. 1 and appendix B (Perplexity Guidance)",
    per_sample=True,
    options=PerplexityOptions,
    reads=_reads,
    score=_score,
    check=_check,
)
