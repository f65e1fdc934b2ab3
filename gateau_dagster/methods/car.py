"""Clustering and Ranking (CaR): rate the quality of instruction and response by a reward model.

The other half of CaR, which adds the best samples of every cluster of `embedding/<encoder>` to the best of all, is
`selection.rule: diverse`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Literal, TypeAlias

import polars as pl
from pydantic import Field

from gateau_dagster import tables
from gateau_dagster.config.base import Section
from gateau_dagster.errors import error_at
from gateau_dagster.methods.method import Method, Reads, Tables
from gateau_dagster.models.model_config import check_architecture, label_index
from gateau_dagster.scoring.sample_table import PlannedWork, Row, Running, SampleTable, SampleTokens, packed_documents

if TYPE_CHECKING:
    from gateau_dagster.data.sample import Reject, Sample
    from gateau_dagster.models.loaded import LoadedModel

TEXT_TOKENS = tables.Column(
    name="tokens", dtype=pl.Int32(), description="Tokens of instruction and response that the model saw."
)
TEXT_TRUNCATED = tables.Column(
    name="truncated_tokens", dtype=pl.Int32(), description="Tokens cut off the text's end to fit the model's window."
)
QUALITY = (
    tables.SAMPLE_ID,
    tables.DIGEST,
    tables.Column(name="quality", dtype=pl.Float64(), description="What the reward model gives; higher is better."),
    TEXT_TOKENS,
    TEXT_TRUNCATED,
)


EMBEDDING = (
    tables.SAMPLE_ID,
    tables.DIGEST,
    tables.Column(
        name="embedding",
        dtype=pl.List(pl.Float32()),
        description="Mean of the encoder's last states over the text's tokens, of length one; as long as its states.",
    ),
    TEXT_TOKENS,
    TEXT_TRUNCATED,
)


class CarOptions(Section):
    """The reward model and its input and output."""

    model: str = Field(default="reward", description="The model of task reward.")
    label: str | int | None = Field(
        default=None,
        description="Which output is the quality, by name or number, of a model with several: the logarithm of its "
        "probability counts then.",
        examples=["LABEL_1"],
    )
    as_pair: bool = Field(
        default=False,
        description="Instruction and response as the tokenizer's two segments, as some reward models are trained, "
        "not as one text with a line's end between them.",
    )
    text: Literal["response", "context"] = Field(
        default="response",
        description="What the reward model reads. response: instruction and response. context: `Instruction: ` and "
        "the instruction, an empty line, and the context, as MDCureRM is trained.",
        exclude_if="response".__eq__,  # a configuration without it keeps its earlier dump
    )


Pooling: TypeAlias = Literal["mean", "position_weighted"]


def embedding_table(model: str, pooling: Pooling = "mean") -> SampleTable:
    """Return the table `embedding/<model>`, or `weighted_embedding/<model>` if later tokens weigh more."""
    weighted = pooling == "position_weighted"

    def score(loaded: LoadedModel, samples: Iterable[Sample], running: Running) -> Iterator[Row | Reject]:
        from gateau_dagster.scoring.text_models import embedding_rows

        return embedding_rows(loaded, samples, running, weighted=weighted)

    return SampleTable(
        asset=f"{'weighted_' * weighted}embedding/{model}",
        model=model,
        columns=EMBEDDING,
        description="Where instruction and response lie among the others, for clusters of like samples."
        + " The mean is weighted: the i-th token weighs i." * weighted,
        score=score,
        prompt="none",
        effort=whole_text_effort,
    )


def whole_text_effort(tokens: SampleTokens, *, context: bool = False) -> PlannedWork:
    """Return the pass over instruction and response, or `context`, as one text, cut to the model's window."""
    other = tokens.context if context else tokens.response
    length = (tokens.instruction + other + tokens.special).clip(max=tokens.limit)
    return PlannedWork(passes=[packed_documents(length * (other > 0), read=None)], reads_context=context)


class Car(Method):
    """Score by what the reward model gives."""

    name = "car"
    title = "A reward model finds instruction and response good."
    source = "Ge et al. 2024, Clustering and Ranking"
    per_sample = True
    task = "reward"
    options: CarOptions

    @property
    def _table(self) -> str:
        return f"quality/{self.options.model}"

    def tables(self) -> Sequence[SampleTable]:
        context = self.options.text == "context"
        seen = "instruction and context" if context else "instruction and response; it does not see the context"
        return [
            SampleTable(
                asset=self._table,
                model=self.options.model,
                columns=QUALITY,
                description=f"How good the reward model finds {seen}.",
                settings=self.options.model_dump(exclude={"model"}),
                score=self._rows,
                prompt="none",
                effort=partial(whole_text_effort, context=context),
                code_version="2",
            )
        ]

    def _rows(self, loaded: LoadedModel, samples: Iterable[Sample], running: Running) -> Iterator[Row | Reject]:
        from gateau_dagster.scoring.text_models import quality_rows

        return quality_rows(loaded, samples, running, **self.options.model_dump(exclude={"model"}))

    def reads(self) -> Reads:
        return {self._table: ["sample_id", "quality"]}

    def score(self, tables: Tables) -> pl.DataFrame:
        return tables[self._table].select("sample_id", score="quality")

    def check_known_models(self) -> None:
        """Check that the reward model has a head that gives one number per text."""
        from gateau_dagster.models.model_facts import facts_of

        name = self.options.model
        model, known = self.config.models[name], facts_of(self.config, name).config
        if known is None:
            return  # neither on this machine nor downloadable: loading reports why
        with error_at(f"{self.place}.model"):
            if not model.trust_remote_code:  # remote code may use any name for its head
                check_architecture(known.architectures or [], name=model.path)
            label_index(known.id2label or {}, self.options.label, name=model.path)
