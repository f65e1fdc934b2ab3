"""The input of a benchmark: the tables that it may read, and the models."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import polars as pl

from gateau_dagster.data.sample import Sample
from gateau_dagster.progress import Progress, silent

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from gateau_dagster.config import Config
    from gateau_dagster.models.loading import LoadedModel

MODELS = ("base", "checkpoint")
"""The base model of the training, and its result."""


@dataclass(frozen=True, kw_only=True)
class Materials:
    """The input of a benchmark; tables are read and models loaded on demand.

    reads: the tables that may be read, from ChosenBenchmark.reads.
    shards: yields these columns of a table, shard by shard; a table over the whole data set is one frame.
    samples: returns the samples with these ids, in order of id.
    model: loads one of MODELS, or a variant by name. One at a time stays loaded, unless the caller keeps the other.
    only_tokenizer: returns a model's tokenizer by name, where it is available without the model.
    """

    config: Config
    reads: Collection[str]
    shards: Callable[[str, Sequence[str]], Iterator[pl.DataFrame]]
    samples: Callable[[Collection[str]], Sequence[Sample]]
    model: Callable[[str], LoadedModel]
    progress: Progress = silent
    only_tokenizer: Callable[[str], PreTrainedTokenizerBase] | None = None

    def tokenizer(self, name: str) -> PreTrainedTokenizerBase:
        """Return the tokenizer of a model."""
        return self.model(name).tokenizer if self.only_tokenizer is None else self.only_tokenizer(name)

    def table(self, asset: str, columns: Sequence[str]) -> pl.DataFrame:
        """Return these columns of a whole table."""
        return pl.concat(self.shards(asset, columns))
