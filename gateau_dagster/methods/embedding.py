"""Compute sentence embeddings of instruction and response, from which `selection.rule: diverse` makes its clusters."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import polars as pl

from gateau_dagster import tables
from gateau_dagster.methods.car import TEXT_TOKENS, TEXT_TRUNCATED, whole_text_effort
from gateau_dagster.methods.method import check_model
from gateau_dagster.scoring.sample_table import Row, Running, SampleTable

if TYPE_CHECKING:
    from gateau_dagster.config import Config
    from gateau_dagster.data.sample import Reject, Sample
    from gateau_dagster.models.loading import LoadedModel

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


def embedding_table(model: str) -> SampleTable:
    """Return the table `embedding/<model>`."""

    def score(loaded: LoadedModel, samples: Iterable[Sample], running: Running) -> Iterator[Row | Reject]:
        from gateau_dagster.scoring.text_models import embedding_rows

        return embedding_rows(loaded, samples, running)

    return SampleTable(
        asset=f"embedding/{model}",
        model=model,
        columns=EMBEDDING,
        description="Where instruction and response lie among the others, for clusters of like samples.",
        score=score,
        prompt="none",
        effort=whole_text_effort,
    )


def check_encoder(config: Config, model: str) -> None:
    """Raise GateauError unless `model`, the value of `selection.encoder`, is configured and has the task embedding."""
    check_model(config, model, "embedding", place="selection.encoder")
