"""Length and response length: baselines that a method must beat to show that it finds more than long samples.

The default unit is bytes of UTF-8, which needs no model and compares texts of different scripts more evenly than
characters do. With a model, the unit is its tokens, from its perplexity table.
"""

from typing import ClassVar

import polars as pl
from pydantic import Field

from gateau_dagster.config.base import Section
from gateau_dagster.methods.method import Method, Reads, Tables

RAW = "raw_long_sft"


class LengthOptions(Section):
    """The unit of length."""

    model: str | None = Field(
        default=None,
        description="The causal model whose tokens are counted, in `perplexity/<model>`; none: bytes of UTF-8.",
        examples=["long"],
    )


class _Lengths(Method):
    """The sum of the bytes of some texts of a sample, or of some token columns of `perplexity/<model>`."""

    source = "baseline"
    per_sample = True
    code_version = "2"
    options: LengthOptions
    texts: ClassVar[tuple[str, ...]]
    columns: ClassVar[tuple[str, ...]]

    def reads(self) -> Reads:
        if self.options.model is None:
            return {RAW: ["sample_id", *self.texts]}
        return {f"perplexity/{self.options.model}": ["sample_id", *self.columns]}

    def score(self, tables: Tables) -> pl.DataFrame:
        (table,) = (tables[asset] for asset in self.reads())
        sizes = pl.col(self.columns) if self.options.model is not None else pl.col(self.texts).str.len_bytes()
        return table.select("sample_id", score=pl.sum_horizontal(sizes.cast(pl.Float64)))


class Length(_Lengths):
    """The length of context and response."""

    name = "length"
    title = "Document and response are long."
    texts = ("context", "response")
    columns = ("context_tokens", "truncated_tokens", "response_tokens")


class ResponseLength(_Lengths):
    """The length of the response."""

    name = "response_length"
    title = "The response is long."
    texts = ("response",)
    columns = ("response_tokens",)
