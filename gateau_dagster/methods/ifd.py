"""Instruction-Following Difficulty (Cherry Selection): score how much of the response's loss the instruction leaves."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Literal

import polars as pl
from pydantic import Field

from gateau_dagster import tables
from gateau_dagster.config.base import Section
from gateau_dagster.errors import GateauError, gateau_command
from gateau_dagster.methods.method import Method, Reads, Tables
from gateau_dagster.scoring.sample_table import PlannedWork, Row, Running, SampleTable, SampleTokens, packed_documents

if TYPE_CHECKING:
    from gateau_dagster.data.sample import Reject, Sample
    from gateau_dagster.models.loaded import LoadedModel

RESPONSE_ALONE = (
    tables.SAMPLE_ID,
    tables.DIGEST,
    tables.Column(
        name="mean_nll",
        dtype=pl.Float64(),
        description="s(y): mean negative log-likelihood per response token without context and instruction.",
    ),
    tables.Column(name="response_tokens", dtype=pl.Int32(), description="Response tokens, all of them scored."),
)


class IfdOptions(Section):
    """The model that reads the responses, and the samples that are excluded."""

    model: str = Field(default="long", description="The causal model; a pre-experienced one, where there is one.")
    ratio: Literal["loss", "perplexity"] = Field(
        default="loss", description="Ratio of the mean losses, as in the paper, or of their exponentials."
    )
    above_one: Literal["exclude", "keep"] = Field(
        default="exclude", description="Treatment of samples whose instruction makes the response less likely."
    )
    truncated: Literal["exclude", "keep"] = Field(
        default="exclude", description="Treatment of samples whose context does not fit into the window."
    )


def response_alone_table(model: str) -> SampleTable:
    """Return the table `response_alone/<model>`."""

    def score(loaded: LoadedModel, samples: Iterable[Sample], running: Running) -> Iterator[Row | Reject]:
        from gateau_dagster.scoring.cherry_selection import response_alone_rows

        return response_alone_rows(loaded, samples, running)

    return SampleTable(
        asset=f"response_alone/{model}",
        model=model,
        columns=RESPONSE_ALONE,
        code_version="2",
        description="How likely the model finds each response without its context and instruction.",
        score=score,
        prompt="none",
        effort=alone_effort,
    )


def alone_effort(tokens: SampleTokens) -> PlannedWork:
    """Return the pass over the response after a few tokens."""
    length = tokens.response + tokens.alone
    fits = (tokens.response > 0) & (length <= tokens.limit)
    return PlannedWork(passes=[packed_documents(length * fits, read=tokens.response * fits)], reads_context=False)


def ifd(given: pl.DataFrame, alone: pl.DataFrame, options: IfdOptions) -> pl.DataFrame:
    """Return IFD = s(y|c,x) / s(y), or exp(s(y|c,x) - s(y)): high if context and instruction help little.

    Args:
        given: tables.PERPLEXITY of the model: its mean_nll is s(y|c,x), in nats per response token.
        alone: RESPONSE_ALONE of the same model.
        options: the kind of ratio, and what is excluded.

    Returns:
        `sample_id` and `score` f64 of the samples of `given`; null: excluded, or not in `alone`.

    Raises:
        GateauError: the tables come from different versions of a sample.
    """
    joined = given.join(alone.rename({"mean_nll": "alone", "digest": "digest_alone"}), on="sample_id", how="left")
    differing = joined.filter(pl.col("digest") != pl.col("digest_alone"))["sample_id"].sort()
    if differing.len():
        raise GateauError(
            "storage.out_of_date",
            f"perplexity/{options.model} and response_alone/{options.model} scored different versions of "
            f"{differing.len()} samples, {differing[0]} among them: update both with `{gateau_command('run')}`",
        )
    loss, alone_loss = pl.col("mean_nll"), pl.col("alone")
    ratio = (loss - alone_loss).exp() if options.ratio == "perplexity" else loss / alone_loss
    # A response that is certain by itself cannot become easier: a ratio to zero is undefined.
    kept = alone_loss > 0
    if options.above_one == "exclude":
        kept &= loss <= alone_loss
    if options.truncated == "exclude":
        kept &= pl.col("truncated_tokens") == 0
    return joined.select("sample_id", score=pl.when(kept).then(ratio))


class Ifd(Method):
    """Score by IFD."""

    name = "ifd"
    title = "The response stays almost as hard for the model with document and instruction as it is without them."
    source = "Li et al. 2024, From Quantity to Quality (Cherry Selection): IFD = s(y|q) / s(y)"
    per_sample = True
    options: IfdOptions

    def reads(self) -> Reads:
        return {
            f"perplexity/{self.options.model}": ["sample_id", "digest", "mean_nll", "truncated_tokens"],
            f"response_alone/{self.options.model}": ["sample_id", "digest", "mean_nll"],
        }

    def score(self, tables: Tables) -> pl.DataFrame:
        given, alone = (tables[name].select(columns) for name, columns in self.reads().items())
        return ifd(given, alone, self.options)

    def tables(self) -> Sequence[SampleTable]:
        return [response_alone_table(self.options.model)]
