"""Provide the rows of the batch plan as a data set, item i a list of documents with positions, and its collators.

A batch is one padded sequence per row, or all documents side by side without padding.
"""

# What it does: the plan says which documents a row has, and this module cuts their tokens out of the mix when a rank
# asks for the row. Nothing is tokenised, shuffled or padded before.
#
# What it costs: id and label of each token stay in the buffers that the file was read into, 8 bytes together, on every
# rank. Only the rows of the pass that comes next are copied.
#
# Two collators, since models differ:
# - PadRight gives rows of equal length. It works with every causal model, and wastes the padding.
# - SideBySide gives one row without padding, and the starts of documents. The attention must keep documents apart, so
#   readiness.py tries the model out first.
#
# When another way is better: a mix that does not fit into the host's memory needs a data set that reads rows from the
# file. A mix of long samples is far from that: 16 GiB hold two billion tokens.

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl
import torch
from torch import Tensor
from torch.utils.data import Dataset

from gateau_dagster.config.training import SkipConfig
from gateau_dagster.training.batch_plan import BatchPlan, MixDocument
from gateau_dagster.training.encode import IGNORED
from gateau_dagster.training.skip_positions import copy_numbers, position_rng, skip_positions


@dataclass(frozen=True, kw_only=True, eq=False)
class TrainingDocument:
    """One sequence of the mix: its place there (`row`), `input_ids`, `labels` and `positions`, each int64 [n], and
    `weights` of its tokens, float32 [n], if the mix has them.

    The first label is IGNORED: no token precedes it, or, in a row of several documents, only a token of another
    document.
    """

    row: int
    input_ids: Tensor
    labels: Tensor
    positions: Tensor
    weights: Tensor | None = None


Batch = dict[str, Any]
Rows = list[list[TrainingDocument]]

# Replaces a row without documents: one token without loss, so that every rank makes each pass.
_FILLER = TrainingDocument(
    row=-1, input_ids=torch.zeros(1).long(), labels=torch.full((1,), IGNORED), positions=torch.zeros(1).long()
)


def trained_tokens(mix: pl.DataFrame) -> list[int]:
    """Return the trained tokens of each document; the first label never counts."""
    labels = pl.col("labels").list
    trained = labels.len() - labels.count_matches(IGNORED) - (labels.first() != IGNORED)
    return mix.select(trained)["labels"].to_list()


class MixRows(Dataset[list[TrainingDocument]]):
    """The rows of `plan` over the mix (tables.TRAINING_MIX or WEIGHTED_MIX), with skipped positions if `skip` is set.

    Skips are redrawn in every epoch and for every copy of a sample, from `seed`, the epoch, the sample's id and the
    copy's number. A resumed training run draws the same.

    With `long_prefix`, tokens have the weights of `prefix_weights`, counted over the mix.

    Tokens remain in the buffers they were read into, 8 bytes for id and label each; an ordered mix is not copied.
    """

    def __init__(
        self,
        mix: pl.DataFrame,
        plan: BatchPlan,
        *,
        skip: SkipConfig | None = None,
        seed: int = 0,
        long_prefix: int | None = None,
    ) -> None:
        self._mix = mix if mix["position"].is_sorted() else mix.sort("position")
        self._plan, self._skip, self._seed = plan, skip, seed
        self.sample_ids: list[str] = self._mix["sample_id"].to_list()
        self._copies = copy_numbers(self.sample_ids)
        self._trained: list[int] | None = None  # counted when they are first needed
        self.lengths: list[int] = self._mix["input_ids"].list.len().to_list()
        tokens = [sum(self.lengths[each.row] for each in plan.step_documents(step + 1)) for step in range(plan.steps)]
        self._by_prefix: Tensor | None = None
        if long_prefix is not None:
            counts = np.zeros(max(self.lengths))
            for labels in self._mix["labels"]:
                counts[1 : len(labels)] += labels.to_numpy()[1:] != IGNORED
            self._by_prefix = torch.from_numpy(prefix_weights(counts, least=long_prefix))
        self._tokens_until = np.concatenate([[0], np.cumsum(tokens)]).astype(int).tolist()

    def __len__(self) -> int:
        return len(self._plan.rows)

    def __getitem__(self, index: int) -> list[TrainingDocument]:
        """Return the documents of a row; none for a row that only fills up the last step."""
        return [self._document(each) for each in self._plan.rows[index]]

    def ids_of(self, rows: Sequence[int]) -> list[str]:
        """Return the samples' ids."""
        return [self.sample_ids[row] for row in rows]

    def ids_of_step(self, step: int) -> list[str]:
        """Return the samples of optimiser step `step` (counted from 1)."""
        return self.ids_of([each.row for each in self._plan.step_documents(step)])

    def tokens_until(self, step: int) -> int:
        """Return the number of tokens of the mix in steps 1..step, without padding."""
        return self._tokens_until[step]

    def work_of_step(self, step: int) -> tuple[list[int], int]:
        """Return the attention lengths of a step (one per document or concatenated row) and its trained tokens."""
        if self._trained is None:
            self._trained = trained_tokens(self._mix)
        rows = [[each.row for each in row] for row in self._plan.step_rows(step) if row]
        lengths = [[self.lengths[document] for document in row] for row in rows]
        together = [sum(row) for row in lengths] if self._plan.concatenated else [n for row in lengths for n in row]
        return together, sum(self._trained[document] for row in rows for document in row)

    @property
    def has_long_prefixes(self) -> bool:
        """Return whether any token has a higher weight because of the number of tokens before it."""
        return self._by_prefix is not None and bool((self._by_prefix > 1).any())

    @property
    def farthest(self) -> int:
        """Return an upper bound of positions: the tokens of the longest sequence, or the length that skips cover."""
        longest = max(self.lengths)
        if self._plan.concatenated:
            longest = max(sum(self.lengths[each.row] for each in row) for row in self._plan.rows)
        return longest if self._skip is None else max(longest, self._skip.length)

    @property
    def longest_pass(self) -> int:
        """Return an upper bound of the tokens of one rank in one pass, including padding."""
        longest = max(sum(self.lengths[each.row] for each in row) for row in self._plan.rows)
        return longest * self._plan.rows_per_batch

    def _document(self, document: MixDocument) -> TrainingDocument:
        row = document.row
        # int32 in the mix, int64 for the rows of the next pass only: torch needs it to look up labels in the logits.
        input_ids, labels = (torch.tensor(self._mix[name][row].to_numpy()).long() for name in ("input_ids", "labels"))
        labels[0] = IGNORED
        weights = None if self._by_prefix is None else self._by_prefix[: self.lengths[row]]
        if "weights" in self._mix.columns:
            weights = torch.tensor(self._mix["weights"][row].to_numpy())
        positions = self._positions(document)
        return TrainingDocument(row=row, input_ids=input_ids, labels=labels, positions=positions, weights=weights)

    def _positions(self, document: MixDocument) -> Tensor:
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


@dataclass(frozen=True, kw_only=True)
class PadRight:
    """Collator that makes one sequence of each row. Right padding has no effect on a causal model.

    The documents of a row follow each other, and each attends to those before it (PackedSFT-k). The loss covers the
    same tokens as for separate documents: the first token of a document has no loss, because the previous document does
    not predict it.

    weighted: adds `weights`, see `loss_weights`.
    """

    pad_token_id: int
    weighted: bool = False

    def __call__(self, rows: Rows) -> Batch:
        """Return `input_ids`, `labels`, `attention_mask`, int64 [batch, longest], `row`, int64 [documents], and
        weights.
        """
        rows = [row or [_FILLER] for row in rows]
        ids = [torch.cat([each.input_ids for each in row]) for row in rows]
        batch: Batch = {
            "input_ids": _padded(ids, self.pad_token_id),
            "labels": _padded([torch.cat([each.labels for each in row]) for row in rows], IGNORED),
            "attention_mask": _padded([torch.ones_like(each) for each in ids], 0),
            "row": _real_rows([each for row in rows for each in row]),
        }
        if self.weighted:
            weights = [torch.cat([loss_weights(each) for each in row]) for row in rows]
            batch["weights"] = _padded(weights, 0)
        return batch


@dataclass(frozen=True, kw_only=True)
class SideBySide:
    """Collator that makes one row of all documents. They do not attend to each other (models.training_attention).

    weighted: adds `weights`, see `loss_weights`. joined: the documents of each row form one document with positions
    from 0, as in `PadRight`.
    """

    weighted: bool = False
    joined: bool = False

    def __call__(self, rows: Rows) -> Batch:
        """Return the batch of one row.

        It has `input_ids`, `labels`, `position_ids`, int64 [1, T]; `cu_seq_lens_q/k`, int32 [documents + 1], the start
        of each document, and T; `max_length_q/k`, the longest one; `row`, int64 [documents]; and weights [1, T].
        """
        rows = [row for row in rows if row] or [[_FILLER]]
        documents = [each for row in rows for each in row]
        sequences = rows if self.joined else [[each] for each in documents]
        lengths = [sum(each.input_ids.numel() for each in sequence) for sequence in sequences]
        # int32, because FlashAttention accepts no other type.
        starts = torch.tensor([0, *accumulate(lengths)], dtype=torch.int32)
        positions = [*map(torch.arange, lengths)] if self.joined else [each.positions for each in documents]
        batch: Batch = {
            "input_ids": torch.cat([each.input_ids for each in documents])[None],
            "labels": torch.cat([each.labels for each in documents])[None],
            "position_ids": torch.cat(positions)[None],
            "row": _real_rows(documents),
        }
        batch |= {f"cu_seq_lens_{side}": starts for side in "qk"} | {
            f"max_length_{side}": max(lengths) for side in "qk"
        }
        if self.weighted:
            batch["weights"] = torch.cat([loss_weights(each) for each in documents])[None]
        return batch


def loss_weights(document: TrainingDocument) -> Tensor:
    """Return the weights of a document's tokens, float32 [n]: its own (LongCE, `far_gain`, EXACT) or LongAlign's."""
    return sequence_weights(document.labels) if document.weights is None else document.weights


def sequence_weights(labels: Tensor) -> Tensor:
    """Return 1 / (trained tokens), float32 [n], so that a sequence's loss is the mean over its tokens (LongAlign)."""
    return torch.full(labels.shape, 1.0 / max(1, int((labels != IGNORED).sum())))


EXTRA, GAMMA = 0.15, 0.5  # EXACT's alpha and gamma


def prefix_weights(
    counts: npt.NDArray[np.float64], *, least: int, extra: float = EXTRA, gamma: float = GAMMA
) -> npt.NDArray[np.float32]:
    """Return the weight of a token by the number of tokens before it in its document: float32 [n].

    Buckets of this number are 0-7, 8-15, 16-31 and so on. The tail is the buckets that begin at `least` or above. With
    q_b, the share of bucket b among the trained tokens of the tail, a token of the tail has the weight

        w_b = 1 + extra · q_b^-gamma / Σ_j q_j q_j^-gamma

    so that Σ_b q_b (w_b - 1) = extra, and every other token 1. The weights are not normalised.

    Source: EXACT (Zhu et al. 2026, arXiv 2605.10544), after a public summary. The paper adds an epsilon to q_b; here a
    bucket without tokens has no weight.

    Args:
        counts: number of trained tokens by the number of tokens before them [n].
        least: tau, a quarter of the row in the paper.
        extra: the weight that is added to a token of the tail on average (alpha).
        gamma: exponent; a larger one gives rare buckets more weight.
    """
    before = np.arange(len(counts))
    starts = np.array([0, *(2**power for power in range(3, 63))])
    bucket = np.searchsorted(starts, before, side="right") - 1
    held = np.bincount(bucket, weights=counts, minlength=len(starts))
    tail = (starts >= least) & (held > 0)
    share = held[tail] / held[tail].sum()
    weights = np.ones(len(starts))
    weights[tail] += extra * share**-gamma / (share ** (1 - gamma)).sum()
    return weights[bucket].astype(np.float32)


def _real_rows(documents: Sequence[TrainingDocument]) -> Tensor:
    return torch.tensor([each.row for each in documents if each.row >= 0], dtype=torch.int64)


def _padded(sequences: list[Tensor], value: float) -> Tensor:
    return torch.nn.utils.rnn.pad_sequence(sequences, batch_first=True, padding_value=value)
