"""Closeness to a target set: prefer samples like those of given sources, by embeddings of instruction and response.

It serves the purpose of selection by influence (LESS) or of data like a benchmark's, at the price of one pass of a
small encoder. No gradient of a language model is computed: closeness of texts replaces influence on a loss.

    score(s) = mean of the k largest cos(e_s, e_t) over the samples t of the target sources

RDS+ (Ivison et al. 2025, arXiv 2503.01807) embeds with a language model, whose token i of T weighs i / (1 + ... + T)
(`pooling: position_weighted`), and lets the target samples choose in turn (`order: round_robin`):

    score(s) = -min_t (r_t(s) m + t),  r_t(s) = samples closer to target t than s is,  t = 1 ... m

A target whose next sample is already chosen loses its turn, as in the authors' program (`get_top_influences.py`). For
several tasks the program lets these choose in turn, each by its closest target sample (`round_robin_sources`).

The target set is part of the data, under a separate `source`. It is the reference for the others and has no score
itself, so that no rule chooses it. It may therefore be a benchmark's own questions. A variant of all samples (`full`)
still trains on it.
"""

from collections.abc import Sequence
from typing import Literal

import numpy as np
import polars as pl
from pydantic import Field

from gateau_dagster.config.base import Section
from gateau_dagster.errors import GateauError
from gateau_dagster.methods.car import Pooling, embedding_table
from gateau_dagster.methods.method import Method, Reads, Tables, check_model
from gateau_dagster.scoring.sample_table import SampleTable
from gateau_dagster.selection.clusters import Matrix, matrix

_RAW = "raw_long_sft"
_ROWS = 4096  # samples per block: their embeddings in float64, and their cosines with the whole target set


class TargetOptions(Section):
    """The target samples, and the model that compares others with them."""

    encoder: str = Field(default="encoder", description="The model of task embedding.")
    sources: list[str] = Field(
        default=[], description="Values of `source`: the samples that others are to be like.", examples=[["my_target"]]
    )
    nearest: int = Field(
        default=5, ge=1, description="Number of nearest target samples that count (k), with order: nearest."
    )
    # The defaults of the next two are excluded, so that a configuration without them keeps its earlier dump.
    pooling: Pooling = Field(
        default="mean",
        description="Weights of a text's tokens in its embedding. position_weighted: token i weighs i, as in RDS+, for "
        "an encoder that is a causal language model, whose later tokens have read more.",
        exclude_if="mean".__eq__,
    )
    order: Literal["nearest", "round_robin", "round_robin_sources"] = Field(
        default="nearest",
        description="How samples are ranked. nearest: by their mean cosine with the nearest target samples. "
        "round_robin: the target samples choose in turn, each the most similar sample (RDS+). round_robin_sources: "
        "the sources choose in turn, each the sample most similar to one of its samples.",
        exclude_if="nearest".__eq__,
    )


def closeness(vectors: Matrix, target: Matrix, *, nearest: int) -> Matrix:
    """Return the mean cosine of each of `vectors` [n, d] with the `nearest` closest rows of `target` [m, d]: float64
    [n].

    Both have rows of length one. With fewer than `nearest` targets, all count. n x m cosines are in memory at once.
    """
    count = min(nearest, len(target))
    return np.partition(vectors @ target.T, -count, axis=1)[:, -count:].mean(axis=1)


def turns(cosines: Matrix) -> Matrix:
    """Return the turn in which each of n samples is chosen first, of m targets that choose in turn: float64 [n].

    Target t of 1 ... m has the turns t, m + t, 2 m + t, ... and names its samples by falling `cosines` [n, m], equal
    ones in their own order.
    """
    count, targets = cosines.shape
    first = np.full(count, np.inf)
    for place, column in enumerate(cosines.T, start=1):
        closest = np.argsort(-column, kind="stable")
        first[closest] = np.minimum(first[closest], np.arange(count) * targets + place)
    return first


class Target(Method):
    """Score by `closeness` to the samples of the target sources, or by the turn in which these choose a sample."""

    name = "target"
    title = "Instruction and response are like those of the samples that were named as the target."
    source = "Ours, for the aim of LESS (Xia et al. 2024): embeddings in the place of gradients; its options are RDS+'s"
    per_sample = False
    options: TargetOptions

    def tables(self) -> Sequence[SampleTable]:
        return [self._table]

    @property
    def _table(self) -> SampleTable:
        return embedding_table(self.options.encoder, self.options.pooling)

    def reads(self) -> Reads:
        return {_RAW: ["sample_id", "source"], self._table.asset: ["sample_id", "embedding"]}

    def score(self, tables: Tables) -> pl.DataFrame:
        embeddings = tables[self._table.asset].filter(pl.col("embedding").is_not_null())
        rows = tables[_RAW].select("sample_id", "source").join(embeddings, on="sample_id").sort("sample_id")
        is_target = pl.col("source").is_in(self.options.sources)
        target, others = rows.filter(is_target), rows.filter(~is_target)
        if target.is_empty():
            raise GateauError("methods.embedding_target", self._no_target(self.options.sources))
        order, nearest = self.options.order, self.options.nearest if self.options.order == "nearest" else 1
        # In the order of `sources`, since the turns of sources follow it.
        by_source = [target.filter(pl.col("source") == source) for source in dict.fromkeys(self.options.sources)]
        groups = {"nearest": [target], "round_robin": target.iter_slices(1), "round_robin_sources": by_source}[order]
        wanted = [matrix(group["embedding"]) for group in groups if group.height]
        parts = (matrix(part["embedding"]) for part in others.iter_slices(_ROWS))
        found = [np.stack([closeness(part, each, nearest=nearest) for each in wanted], axis=1) for part in parts]
        cosines = np.concatenate([np.empty((0, len(wanted))), *found])
        values = cosines[:, 0] if order == "nearest" else -turns(cosines)
        scored = others.select("sample_id", score=pl.Series(values))
        return tables[_RAW].select("sample_id").join(scored, on="sample_id", how="left")

    def _no_target(self, sources: Sequence[str]) -> str:
        return (
            f"{self.place}.sources: no usable sample has the source {' or '.join(map(repr, sources))}: add the target "
            "set to the files of long_sft.path, each record with that `source`"
        )

    def check(self) -> None:
        check_model(self.config, self.options.encoder, "embedding", place=f"{self.place}.encoder")
        if not self.options.sources:
            raise GateauError(
                "methods.embedding_target",
                f"{self.place}.sources: name values of `source`: the samples that others are compared with",
            )

    def check_data(self, accepted: pl.DataFrame) -> None:
        is_target = accepted["source"].is_in(self.options.sources)
        if not is_target.any():
            raise GateauError("methods.embedding_target", self._no_target(self.options.sources))
        if is_target.all():
            raise GateauError(
                "methods.embedding_target",
                f"{self.place}.sources: all usable samples belong to the target, so none is left to score: name fewer "
                "values",
            )

    def warnings(self, accepted: pl.DataFrame) -> list[str]:
        """Warn about target sources that no sample has: the name may be misspelt."""
        absent = {*self.options.sources} - {*accepted["source"].unique()}
        return [self._no_target(sorted(absent))] if absent else []
