"""Length and response length: baselines that a method has to beat to have found more than long samples."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl
from pydantic import Field

from gateau_dagster.config.base import Section
from gateau_dagster.methods.method import Method, Reads, Tables
from gateau_dagster.methods.model_task import check_model

if TYPE_CHECKING:
    from gateau_dagster.config import Config


class LengthOptions(Section):
    """Whose tokens are counted."""

    model: str = Field(default="long", description="The causal model with whose tokenizer the tokens are counted.")


def _method(name: str, columns: list[str], title: str) -> Method:
    """The sum of some columns of `perplexity/<model>`, in tokens."""

    def reads(config: Config, options: LengthOptions) -> Reads:
        del config
        return {f"perplexity/{options.model}": ["sample_id", *columns]}

    def score(found: Tables, config: Config, options: LengthOptions) -> pl.DataFrame:
        del config
        tokens = pl.sum_horizontal(pl.col(columns).cast(pl.Float64))
        return found[f"perplexity/{options.model}"].select("sample_id", score=tokens)

    def check(config: Config, options: LengthOptions) -> None:
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
    )


METHODS = (
    _method(
        "length",
        ["context_tokens", "truncated_tokens", "response_tokens"],
        "Document and response are long, in tokens, with what does not fit the model.",
    ),
    _method("response_length", ["response_tokens"], "The response is long, in tokens."),
)
