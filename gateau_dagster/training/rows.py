"""The rows of the batch plan as a data set: item i is row i of the plan, a list of documents with their positions."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl
import torch
from torch import Tensor
from torch.utils.data import Dataset

from gateau_dagster.config.training_sections import SkipConfig
from gateau_dagster.training.batch_plan import BatchPlan, Document
from gateau_dagster.training.encode import IGNORED
from gateau_dagster.training.skip_positions import copy_numbers, position_rng, skip_positions


@dataclass(frozen=True, kw_only=True, eq=False)
class TrainingDocument:
    """One sequence of the mix: its place there (`row`), `input_ids`, `labels` and `positions`, each int64 [n].

    The first label is IGNORED: no token comes before it, or in a row of several documents one that knows nothing of it.
    """

    row: int
    input_ids: Tensor
    labels: Tensor
    positions: Tensor


class MixRows(Dataset[list[TrainingDocument]]):
    """Rows of `plan` over the mix (tables.TRAINING_MIX), with skipped positions where `skip` asks for them.

    A document's skips are drawn anew in every epoch and for every copy of a sample, from `seed`, the epoch, the
    sample's id and the copy's number: a training that is resumed draws the same.

    Tokens stay where they were read to, 8 bytes of ids and labels each: of a mix in order nothing is copied.
    """

    def __init__(self, mix: pl.DataFrame, plan: BatchPlan, *, skip: SkipConfig | None = None, seed: int = 0) -> None:
        self._mix = mix if mix["position"].is_sorted() else mix.sort("position")
        self._plan, self._skip, self._seed = plan, skip, seed
        self.sample_ids: list[str] = self._mix["sample_id"].to_list()
        self._copies = copy_numbers(self.sample_ids)
        self.lengths: list[int] = self._mix["input_ids"].list.len().to_list()
        tokens = [sum(self.lengths[each.row] for each in plan.step_documents(step + 1)) for step in range(plan.steps)]
        self._tokens_until = np.concatenate([[0], np.cumsum(tokens)]).astype(int).tolist()

    def __len__(self) -> int:
        return len(self._plan.rows)

    def __getitem__(self, index: int) -> list[TrainingDocument]:
        """The documents of a row; none for a row that only fills up the last step."""
        return [self._document(each) for each in self._plan.rows[index]]

    def ids_of(self, rows: Sequence[int]) -> list[str]:
        """The samples' ids."""
        return [self.sample_ids[row] for row in rows]

    def ids_of_step(self, step: int) -> list[str]:
        """The samples that optimiser step `step` (counted from 1) learns from."""
        return self.ids_of([each.row for each in self._plan.step_documents(step)])

    def tokens_until(self, step: int) -> int:
        """Tokens of the mix that steps 1..step learn from, padding not counted."""
        return self._tokens_until[step]

    @property
    def farthest(self) -> int:
        """Positions stay below this: tokens of the longest sequence, or what skips spread over."""
        longest = max(self.lengths)
        if self._plan.concatenated:
            longest = max(sum(self.lengths[each.row] for each in row) for row in self._plan.rows)
        return longest if self._skip is None else max(longest, self._skip.length)

    def _document(self, document: Document) -> TrainingDocument:
        row = document.row
        input_ids, labels = (torch.tensor(self._mix[name][row].to_numpy()).long() for name in ("input_ids", "labels"))
        labels[0] = IGNORED
        return TrainingDocument(row=row, input_ids=input_ids, labels=labels, positions=self._positions(document))

    def _positions(self, document: Document) -> Tensor:
        row = document.row
        if self._skip is None:
            return torch.arange(self.lengths[row])
        rng = position_rng(self._seed, document.epoch, self.sample_ids[row], self._copies[row])
        positions = skip_positions(
            self._mix["block_tokens"][row].to_list(),
            strategy=self._skip.strategy,
            length=self._skip.length,
            probability=self._skip.probability,
            rng=rng,
        )
        return torch.from_numpy(positions)
