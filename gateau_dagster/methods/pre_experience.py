"""Choose the few diverse samples on which Cherry Selection trains its pre-experienced model first."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import polars as pl

from gateau_dagster import tables
from gateau_dagster.config.models import PreExperienceOptions
from gateau_dagster.scoring.sample_table import (
    PROMPT_TOKENS,
    PlannedPasses,
    PlannedWork,
    Row,
    Running,
    SampleTable,
    SampleTokens,
)
from gateau_dagster.selection.clusters import Labels, cluster_count, k_means, matrix
from gateau_dagster.selection.statistics import uniform

if TYPE_CHECKING:
    from gateau_dagster.data.sample import Reject, Sample
    from gateau_dagster.models.loaded import LoadedModel

Vector = npt.NDArray[np.float64]

INSTRUCTION_EMBEDDING = (
    tables.SAMPLE_ID,
    tables.DIGEST,
    tables.Column(
        name="embedding",
        dtype=pl.List(pl.Float32()),
        description="Mean of the model's last hidden states over the first 512 tokens of the prompt.",
    ),
    tables.Column(name="perplexity", dtype=pl.Float64(), description="Of these tokens, each after the ones before it."),
    tables.Column(name="prompt_tokens", dtype=pl.Int32(), description="How many they are, with bos."),
)


def instruction_embedding_table(model: str) -> SampleTable:
    """Return the table `instruction_embedding/<model>`."""

    def score(loaded: LoadedModel, samples: Iterable[Sample], running: Running) -> Iterator[Row | Reject]:
        from gateau_dagster.scoring.cherry_selection import instruction_embedding_rows

        return instruction_embedding_rows(loaded, samples, running)

    return SampleTable(
        asset=f"instruction_embedding/{model}",
        model=model,
        columns=INSTRUCTION_EMBEDDING,
        code_version="2",
        summary="embeddings by which the samples for a pre-experienced model are chosen",
        description="The embedding of each prompt, and its likelihood under the model. By both, the samples for a "
        "pre-experienced model are chosen.",
        score=score,
        prompt="none",
        effort=instruction_effort,
    )


def instruction_effort(tokens: SampleTokens) -> PlannedWork:
    """Return the pass over bos and the prompt's beginning; all its tokens but the first are predicted."""
    whole = tokens.instruction + tokens.context + tokens.bos + tokens.task
    length = np.minimum(whole, min(PROMPT_TOKENS, tokens.limit))
    return PlannedWork(passes=[PlannedPasses(count=np.ones_like(length), length=length, predicted=length - 1)])


def pre_experience_sample(embeddings: pl.DataFrame, options: PreExperienceOptions) -> pl.DataFrame:
    """Return the samples for training the pre-experienced model: at most `per_cluster` of each cluster of prompts.

    A cluster with fewer samples gives all of them. The result does not depend on the rows' order, because samples are
    sorted by id.

    Args:
        embeddings: INSTRUCTION_EMBEDDING, of the whole data set.
        options: the number of clusters, and which of their samples to take.

    Returns:
        `sample_id` and `cluster` i64, sorted by id.

    Raises:
        GateauError: fewer samples, or fewer different embeddings, than clusters.
    """
    cluster_count(embeddings.height, options.clusters)
    ordered = embeddings.select("sample_id", "embedding", "perplexity").sort("sample_id")
    vectors = matrix(ordered["embedding"])
    labels, centres = k_means(vectors, options.clusters, seed=options.seed)
    if options.pick == "middle":
        taken = in_the_middle(ordered["perplexity"].to_numpy(), labels, options.per_cluster)
        return ordered.select("sample_id", cluster=pl.Series(labels)).filter(pl.Series(taken))
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


def in_the_middle(perplexity: Vector, labels: Labels, most: int) -> npt.NDArray[np.bool_]:
    """Return which samples the authors' program takes (tianyi-lab/Cherry_LLM, data_by_cluster.py): bool [n].

    A cluster with fewer than `most` samples gives all. Otherwise the candidates are those whose perplexity is between
    the cluster's 25th and 75th percentiles, inclusive. Of these, every s-th in their order is taken, s =
    floor(candidates / `most`), up to `most`; all of them if they are fewer.

    `perplexity` f64 [n]; `labels` [n], the cluster of each, in the order of the data.
    """
    taken = np.zeros(len(labels), dtype=bool)
    for cluster in np.unique(labels):
        members = np.flatnonzero(labels == cluster)
        if len(members) >= most:
            low, high = np.percentile(perplexity[members], (25, 75))
            members = members[(perplexity[members] >= low) & (perplexity[members] <= high)]
            members = members[:: max(1, len(members) // most)][:most]
        taken[members] = True
    return taken
