"""The pre-experienced model of Cherry Selection: the few samples, of all kinds, that it is trained on first."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from gateau_dagster import tables
from gateau_dagster.config.models import PreExperienceOptions
from gateau_dagster.methods.random_order import uniform
from gateau_dagster.scoring.sample_table import Row, Running, SampleTable
from gateau_dagster.selection.clusters import cluster_count, k_means, matrix

if TYPE_CHECKING:
    from gateau_dagster.data.sample import Reject, Sample
    from gateau_dagster.models.loading import LoadedModel
    from gateau_dagster.scoring.planned_work import PlannedWork, SampleTokens

INSTRUCTION_EMBEDDING = (
    tables.SAMPLE_ID,
    tables.DIGEST,
    tables.Column(
        name="embedding",
        dtype=pl.List(pl.Float32()),
        description="Mean of the model's last hidden states over the instruction's tokens.",
    ),
    tables.Column(name="instruction_tokens", dtype=pl.Int32(), description="Tokens of the instruction, without bos."),
)


def instruction_embedding_table(model: str) -> SampleTable:
    """`instruction_embedding/<model>`."""

    def score(loaded: LoadedModel, samples: Iterable[Sample], running: Running) -> Iterator[Row | Reject]:
        from gateau_dagster.scoring.instruction_embedding import instruction_embedding_rows

        return instruction_embedding_rows(loaded, samples, running)

    return SampleTable(
        asset=f"instruction_embedding/{model}",
        model=model,
        columns=INSTRUCTION_EMBEDDING,
        summary="what the samples of a pre-experienced model are chosen by",
        description="Where each instruction lies among the others, for the sample that a model is trained on first.",
        score=score,
        prompt="none",
        effort=instruction_effort,
    )


def instruction_effort(tokens: SampleTokens) -> PlannedWork:
    """The instruction behind bos; no output layer runs."""
    from gateau_dagster.scoring.planned_work import PlannedWork, packed_documents

    fits = (tokens.instruction > 0) & (tokens.instruction < tokens.limit)
    return PlannedWork(
        passes=[packed_documents((tokens.instruction + tokens.bos) * fits, read=None)], reads_context=False
    )


def pre_experience_sample(embeddings: pl.DataFrame, options: PreExperienceOptions) -> pl.DataFrame:
    """The samples that the pre-experienced model is trained on: `per_cluster` of each cluster of instructions.

    A cluster with fewer samples gives all it has. The result does not depend on the rows' order.

    Args:
        embeddings: INSTRUCTION_EMBEDDING, of the whole data set.
        options: how many clusters, and which samples of them.

    Returns:
        `sample_id` and `cluster` i64, sorted by id.

    Raises:
        GateauError: fewer samples, or fewer different embeddings, than clusters.
    """
    cluster_count(embeddings.height, options.clusters)
    ordered = embeddings.select("sample_id", "embedding").sort("sample_id")
    vectors = matrix(ordered["embedding"])
    labels, centres = k_means(vectors, options.clusters, seed=options.seed)
    if options.pick == "nearest":
        order = np.linalg.norm(vectors - centres[labels], axis=1)
    else:
        order = np.array([uniform(sample_id, options.seed) for sample_id in ordered["sample_id"]])
    placed = ordered.select("sample_id", cluster=pl.Series(labels), order=pl.Series(order)).sort("order", "sample_id")
    return (
        placed.filter(pl.int_range(pl.len()).over("cluster") < options.per_cluster)
        .select("sample_id", "cluster")
        .sort("sample_id")
    )
