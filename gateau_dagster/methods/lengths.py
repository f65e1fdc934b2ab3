"""Length and response length: baselines that a method must beat to show that it finds more than long samples.

The default unit is bytes of UTF-8, which needs no model and compares texts of different scripts more evenly than
characters do. With a model, the unit is its tokens, from its perplexity table.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl
from pydantic import Field

from gateau_dagster.config.base import Section
from gateau_dagster.methods.method import Method, Reads, Tables, check_model

if TYPE_CHECKING:
    from gateau_dagster.config import Config

RAW = "raw_long_sft"


class LengthOptions(Section):
    """The unit of length."""

    model: str | None = Field(
        default=None,
        description="The causal model whose tokens are counted, in `perplexity/<model>`; none: bytes of UTF-8.",
    )


def _method(name: str, texts: list[str], columns: list[str], title: str) -> Method:
    """Return a method that sums the bytes of some texts of a sample, or some token columns of `perplexity/<model>`."""

    def reads(config: Config, options: LengthOptions) -> Reads:
        del config
        if options.model is None:
            return {RAW: ["sample_id", *texts]}
        return {f"perplexity/{options.model}": ["sample_id", *columns]}

    def score(found: Tables, config: Config, options: LengthOptions) -> pl.DataFrame:
        del config
        if options.model is None:
            size = pl.sum_horizontal(pl.col(texts).str.len_bytes().cast(pl.Float64))
            return found[RAW].select("sample_id", score=size)
        tokens = pl.sum_horizontal(pl.col(columns).cast(pl.Float64))
        return found[f"perplexity/{options.model}"].select("sample_id", score=tokens)

    def check(config: Config, options: LengthOptions) -> None:
        if options.model is not None:
            check_model(config, options.model, "causal", place=f"selection.options.{name}.model")

    return Method(
        name=name,
        title=title,
        source="baseline",
        per_sample=True,
        options=LengthOptions,
        reads=reads,
        score=score,
        check=check,
        code_version="2",
    )


METHODS = (
    _method(
        "length",
        ["context", "response"],
        ["context_tokens", "truncated_tokens", "response_tokens"],
        "Document and response are long.",
    ),
    _method("response_length", ["response"], ["response_tokens"], "The response is long."),
)
