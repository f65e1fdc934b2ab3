"""Length and response length: baselines that a method has to beat to have found more than long samples.

By default in bytes of UTF-8, which no model has to be run for, and which compare texts of different scripts more evenly
than characters do; with a model, in its tokens, which stand in its perplexity table.
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
    """In which unit."""

    model: str | None = Field(
        default=None,
        description="The causal model whose tokens are counted, in `perplexity/<model>`; none: bytes of UTF-8.",
    )


def _method(name: str, texts: list[str], columns: list[str], title: str) -> Method:
    """The bytes of some texts of a sample; or the sum of some columns of `perplexity/<model>`, in tokens."""

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
