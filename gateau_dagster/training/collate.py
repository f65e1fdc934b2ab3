"""Rows of documents as one batch: a sequence a row and padded on the right, or all side by side without any padding."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from gateau_dagster.training.encode import IGNORED
from gateau_dagster.training.rows import TrainingDocument

Batch = dict[str, Any]
Rows = list[list[TrainingDocument]]

# In the place of a row without documents: one token that nothing learns from, so that every rank makes each pass.
_FILLER = TrainingDocument(
    row=-1, input_ids=torch.zeros(1).long(), labels=torch.full((1,), IGNORED), positions=torch.zeros(1).long()
)


@dataclass(frozen=True, kw_only=True)
class PadRight:
    """Collator that makes one sequence of each row. Right padding changes nothing for a causal model.

    The documents of a row stand one behind the other, and each sees those before it (PackedSFT-k). What is learned is
    the same as alone: no document's first token, which the one before it says nothing of.

    weighted: adds `weights`, see `sequence_weights`.
    """

    pad_token_id: int
    weighted: bool = False

    def __call__(self, rows: Rows) -> Batch:
        """`input_ids`, `labels`, `attention_mask`, int64 [batch, longest], `row`, int64 [documents], and weights."""
        rows = [row or [_FILLER] for row in rows]
        ids = [torch.cat([each.input_ids for each in row]) for row in rows]
        batch: Batch = {
            "input_ids": _padded(ids, self.pad_token_id),
            "labels": _padded([torch.cat([each.labels for each in row]) for row in rows], IGNORED),
            "attention_mask": _padded([torch.ones_like(each) for each in ids], 0),
            "row": _real_rows([each for row in rows for each in row]),
        }
        if self.weighted:
            weights = [torch.cat([sequence_weights(each.labels) for each in row]) for row in rows]
            batch["weights"] = _padded(weights, 0)
        return batch


@dataclass(frozen=True, kw_only=True)
class SideBySide:
    """Collator that makes one row of all documents. They do not see one another (document_attention.py).

    weighted: adds `weights`, see `sequence_weights`.
    """

    weighted: bool = False

    def __call__(self, rows: Rows) -> Batch:
        """`input_ids`, `labels`, `position_ids`, int64 [1, T]; `cu_seq_lens_q/k`, int32 [documents + 1], where each
        document begins, and T; `max_length_q/k`, the longest one; `row`, int64 [documents]; and weights [1, T]."""
        documents = [each for row in rows for each in row] or [_FILLER]
        lengths = [each.input_ids.numel() for each in documents]
        starts = torch.tensor([0, *accumulate(lengths)], dtype=torch.int32)
        batch: Batch = {
            "input_ids": torch.cat([each.input_ids for each in documents])[None],
            "labels": torch.cat([each.labels for each in documents])[None],
            "position_ids": torch.cat([each.positions for each in documents])[None],
            "row": _real_rows(documents),
        }
        batch |= {f"cu_seq_lens_{side}": starts for side in "qk"} | {
            f"max_length_{side}": max(lengths) for side in "qk"
        }
        if self.weighted:
            batch["weights"] = torch.cat([sequence_weights(each.labels) for each in documents])[None]
        return batch


def sequence_weights(labels: Tensor) -> Tensor:
    """float32 [n]: 1 / (trained tokens), so that a sequence's loss is the mean over its own tokens (LongAlign)."""
    return torch.full(labels.shape, 1.0 / max(1, int((labels != IGNORED).sum())))


def _real_rows(documents: Sequence[TrainingDocument]) -> Tensor:
    return torch.tensor([each.row for each in documents if each.row >= 0], dtype=torch.int64)


def _padded(sequences: list[Tensor], value: float) -> Tensor:
    return torch.nn.utils.rnn.pad_sequence(sequences, batch_first=True, padding_value=value)
