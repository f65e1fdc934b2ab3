"""Closeness to a target set: prefer samples like those of given sources, by embeddings of instruction and response.

It serves the purpose of selection by influence (LESS) or of data like a benchmark's, at the price of one pass of a
small encoder. No gradient of a language model is computed: closeness of texts replaces influence on a loss.

    score(s) = mean of the k largest cos(e_s, e_t) over the samples t of the target sources

The target set is part of the data, under a `source` of its own. It is the reference for the others and has no score
itself, so that no rule chooses it. It may therefore be a benchmark's own questions. A variant of all samples (`full`)
still trains on it.
"""

from collections.abc import Sequence

import numpy as np
import polars as pl
from pydantic import Field

from gateau_dagster.config.base import Section
from gateau_dagster.errors import GateauError
from gateau_dagster.methods.car import embedding_table
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
    nearest: int = Field(default=5, ge=1, description="Number of nearest target samples that count (k).")


def closeness(vectors: Matrix, target: Matrix, *, nearest: int) -> Matrix:
    """Return the mean cosine of each of `vectors` [n, d] with the `nearest` closest rows of `target` [m, d]: float64
    [n].

    Both have rows of length one. With fewer than `nearest` targets, all count. n x m cosines are in memory at once.
    """
    count = min(nearest, len(target))
    return np.partition(vectors @ target.T, -count, axis=1)[:, -count:].mean(axis=1)


class Target(Method):
    """Score by `closeness` to the samples of the target sources."""

    name = "target"
    title = "Instruction and response are like those of the samples that were named as the target."
    source = "Ours, for the aim of LESS (Xia et al. 2024): embeddings in the place of gradients"
    per_sample = False
    options: TargetOptions

    def tables(self) -> Sequence[SampleTable]:
        return [embedding_table(self.options.encoder)]

    def reads(self) -> Reads:
        return {_RAW: ["sample_id", "source"], f"embedding/{self.options.encoder}": ["sample_id", "embedding"]}

    def score(self, tables: Tables) -> pl.DataFrame:
        embeddings = tables[f"embedding/{self.options.encoder}"].filter(pl.col("embedding").is_not_null())
        rows = tables[_RAW].select("sample_id", "source").join(embeddings, on="sample_id").sort("sample_id")
        is_target = pl.col("source").is_in(self.options.sources)
        target, others = rows.filter(is_target), rows.filter(~is_target)
        if target.is_empty():
            raise GateauError("methods.embedding_target", self._no_target(self.options.sources))
        wanted = matrix(target["embedding"])
        parts = (matrix(part["embedding"]) for part in others.iter_slices(_ROWS))
        values = [closeness(part, wanted, nearest=self.options.nearest) for part in parts]
        scored = others.select("sample_id", score=pl.Series(np.concatenate([np.empty(0), *values])))
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
