"""Rows of models that read a text as a whole: ratings of a reward model, sentence embeddings."""

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from gateau_dagster.data.sample import Reject, Sample
from gateau_dagster.models.loading import LoadedModel
from gateau_dagster.models.reward_head import Label, label_index
from gateau_dagster.scoring.whole_text import Batch, read_texts

if TYPE_CHECKING:
    from gateau_dagster.scoring.sample_table import Row, Running


def quality_rows(
    loaded: LoadedModel, samples: "Iterable[Sample]", running: "Running", *, label: Label | None, as_pair: bool
) -> "Iterator[Row | Reject]":
    """A row (methods.car.QUALITY) or a reject for each sample, in order.

    The quality is the output of a head with one, and of a head with several the logarithm of `label`'s probability:
    there an output says something only beside the others.

    Raises GateauError, before any sample is read, when the head has several outputs and `label` names none of them.
    """
    config: Any = loaded.model.config
    index = label_index(config.id2label, label, name=loaded.name)
    # A decoder's head reads the last token of each row, which it finds by the padding; without one it takes one row.
    alone = getattr(config.get_text_config(), "pad_token_id", None) is None

    @torch.no_grad()
    def vectors(batch: Batch) -> Tensor:
        logits = loaded.model(**batch).logits.double()
        rates = logits if logits.shape[1] == 1 else logits.log_softmax(dim=1)
        return rates[:, index : index + 1]

    found = read_texts(loaded, samples, running, as_pair=as_pair, vectors=vectors, alone=alone, of_response=True)
    for read in found:
        if isinstance(read, Reject):
            yield read
        else:
            yield {
                "sample_id": read.sample.sample_id,
                "digest": read.sample.digest,
                "quality": float(read.vector[0]),
                "tokens": len(read.text.ids),
                "truncated_tokens": read.text.truncated_tokens,
            }


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
