"""Rows of the training mix as a data set, and batches of them: padded on the right, the first label never counted."""

from collections.abc import Sequence
from dataclasses import dataclass

import polars as pl
import torch
from torch.utils.data import Dataset

from gateau_dagster.training.encode import IGNORED
from gateau_dagster.training.order import PADDING, Layout

Row = dict[str, torch.Tensor]


class MixRows(Dataset[Row]):
    """All epochs' rows in training order; item i is row `layout.rows[i]` of the mix."""

    def __init__(self, mix: pl.DataFrame, layout: Layout) -> None:
        self._mix = mix.sort("position")
        self._layout = layout
        self.sample_ids: list[str] = self._mix["sample_id"].to_list()
        self.lengths: list[int] = self._mix["input_ids"].list.len().to_list()

    def __len__(self) -> int:
        return len(self._layout.rows)

    def __getitem__(self, index: int) -> Row:
        """`input_ids` and `labels`, int64 [n], and `row`, int64 []; PADDING is one token without label."""
        row = self._layout.rows[index]
        if row == PADDING:
            input_ids, labels = torch.zeros(1, dtype=torch.int64), torch.full((1,), IGNORED)
        else:
            input_ids, labels = (
                torch.tensor(self._mix[column][row].to_numpy(), dtype=torch.int64) for column in ("input_ids", "labels")
            )
        return {"input_ids": input_ids, "labels": labels, "row": torch.tensor(row)}

    def ids_of(self, rows: Sequence[int]) -> list[str]:
        """The samples' ids, without padding."""
        return [self.sample_ids[row] for row in rows if row != PADDING]

    def tokens_until(self, step: int) -> int:
        """Tokens of the mix that steps 1..step learn from, padding not counted."""
        rows = self._layout.rows[: step * self._layout.global_batch]
        return sum(self.lengths[row] for row in rows if row != PADDING)


@dataclass(frozen=True, kw_only=True)
class PadRight:
    """Collator. Right padding changes nothing for a causal model; the mask is there for models that want one."""

    pad_token_id: int

    def __call__(self, rows: list[Row]) -> Row:
        """`input_ids`, `labels`, `attention_mask`, int64 [batch, longest], and `row`, int64 [batch]."""
        input_ids = _padded([row["input_ids"] for row in rows], self.pad_token_id)
        labels = _padded([row["labels"] for row in rows], IGNORED)
        labels[:, 0] = IGNORED  # no token comes before it: nothing predicts it
        mask = _padded([torch.ones_like(row["input_ids"]) for row in rows], 0)
        row_numbers = torch.stack([row["row"] for row in rows])
        return {"input_ids": input_ids, "labels": labels, "attention_mask": mask, "row": row_numbers}


def _padded(sequences: list[torch.Tensor], value: int) -> torch.Tensor:
    return torch.nn.utils.rnn.pad_sequence(sequences, batch_first=True, padding_value=value)
