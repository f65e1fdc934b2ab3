"""Sentence embeddings of instruction and response: the mean of an encoder's last states, of length one."""

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gateau_dagster.data.sample import Reject, Sample
from gateau_dagster.scoring.loading import LoadedModel
from gateau_dagster.scoring.whole_text import Batch, read_texts

if TYPE_CHECKING:
    from gateau_dagster.methods.sample_table import Row, Running


def embedding_rows(loaded: LoadedModel, samples: "Iterable[Sample]", running: "Running") -> "Iterator[Row | Reject]":
    """A row (methods.embedding.EMBEDDING) or a reject for each sample, in order."""

    @torch.no_grad()
    def vectors(batch: Batch) -> Tensor:
        states = loaded.model(**batch, return_dict=True).last_hidden_state
        return mean_pooled(states, batch["attention_mask"])

    for read in read_texts(loaded, samples, running, as_pair=False, vectors=vectors):
        if isinstance(read, Reject):
            yield read
        else:
            yield {
                "sample_id": read.sample.sample_id,
                "digest": read.sample.digest,
                "embedding": read.vector.tolist(),
                "tokens": len(read.text.ids),
                "truncated_tokens": read.text.truncated_tokens,
            }


def mean_pooled(states: Tensor, mask: Tensor) -> Tensor:
    """Mean of `states` [B, T, d] over the tokens of `mask` [B, T], divided by its length: float64 [B, d]."""
    weights = mask[..., None].double()
    mean = (states.double() * weights).sum(dim=1) / weights.sum(dim=1)
    return mean / mean.norm(dim=1, keepdim=True)
