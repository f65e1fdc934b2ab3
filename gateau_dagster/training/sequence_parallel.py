"""Ulysses sequence parallelism: ranks share each sequence, by its tokens and, in the attention, by its heads.

DeepSpeed exchanges tokens against heads around the attention (Jacobs et al. 2023, arXiv 2309.14509), through
accelerate's ParallelismConfig. Its own data loader distributes batches in another order, in which a training cannot be
resumed. Here each rank reads the batch of its group and keeps its part. The loss is summed over the parts, and divided
once by the count of the whole global batch. It is exact with several passes per step, too.
"""

from dataclasses import dataclass
from types import MethodType
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset
from transformers import PreTrainedModel, TrainingArguments
from transformers.modeling_outputs import CausalLMOutputWithPast

from gateau_dagster.models.sequence_parts import parts_differ
from gateau_dagster.training.dataset import Batch, MixRows, PadRight, Rows, TrainingDocument
from gateau_dagster.training.encode import IGNORED
from gateau_dagster.training.readiness import check_heads, check_sharding, unsupported

ATTENTION = "sdpa"


def parallelism(*, size: int, processes: int, deepspeed: dict[str, Any] | None) -> Any:
    """Return accelerate's configuration: `size` ranks share a sequence, of `processes` in all, by DeepSpeed's
    `deepspeed`.

    Raises:
        GateauError: DeepSpeed would scale the gradient differently than `ResponseTrainer` compensates for.
    """
    from accelerate.parallelism_config import ParallelismConfig
    from accelerate.utils import DeepSpeedSequenceParallelConfig

    check_sharding(deepspeed)
    return ParallelismConfig(
        sp_size=size,
        sp_backend="deepspeed",
        dp_replicate_size=processes // size,
        sp_handler=DeepSpeedSequenceParallelConfig(sp_seq_length_is_variable=True, sp_attn_implementation=ATTENTION),
    )


class SharedRows(Dataset[list[TrainingDocument]]):
    """The rows in the order in which the Trainer distributes batches to ranks: each batch once for every rank of a
    group.
    """

    def __init__(self, rows: MixRows, *, size: int, rows_per_batch: int) -> None:
        self._rows, self._size, self._per_batch = rows, size, rows_per_batch

    def __len__(self) -> int:
        return len(self._rows) * self._size

    def __getitem__(self, index: int) -> list[TrainingDocument]:
        batch, place = divmod(index, self._per_batch)
        return self._rows[batch // self._size * self._per_batch + place]


@dataclass(frozen=True, kw_only=True)
class PartOfSequence:
    """Collator that pads as `whole` does, to a multiple of `size` tokens, and keeps part number `part`."""

    whole: PadRight
    part: int
    size: int

    def __call__(self, rows: Rows) -> Batch:
        """Return `input_ids`, `position_ids`, `shift_labels` int64 [batch, tokens of a part], `row`, and
        `shift_weights`.

        Token t of a part is trained with shift_labels t, the next token, even if that is in the next part.
        """
        batch = self.whole(rows)
        ids = batch["input_ids"]
        tokens = -(-ids.shape[1] // self.size)  # rounded up
        missing = tokens * self.size - ids.shape[1]
        positions = torch.arange(tokens * self.size).expand(len(ids), -1)
        sequences = {
            "input_ids": _longer(ids, missing, self.whole.pad_token_id),
            "position_ids": positions,
            "shift_labels": _longer(batch["labels"][:, 1:], missing + 1, IGNORED),
        }
        if "weights" in batch:
            sequences["shift_weights"] = _longer(batch["weights"][:, 1:], missing + 1, 0)
        mine = slice(self.part * tokens, (self.part + 1) * tokens)
        return {name: value[:, mine].contiguous() for name, value in sequences.items()} | {"row": batch["row"]}


def _longer(values: Tensor, missing: int, fill: float) -> Tensor:
    return torch.nn.functional.pad(values, (0, missing), value=fill)


def share_sequences(model: PreTrainedModel, *, size: int) -> None:
    """Let `model`, after `use_chunked_loss`, return the loss of a part of each sequence, with shifted labels.

    Raises:
        GateauError: its heads cannot be split, its attention is not plainly causal (the exchange drops masks), or a
            trial shows that a part of a sequence does not come out as in the whole.
    """
    name = type(model).__name__
    check_heads(model.config, size, name=name)
    if model.config._attn_implementation != ATTENTION:
        reason = f"it computes its attention by {model.config._attn_implementation}, but {ATTENTION} is needed"
        raise unsupported(model.config, name, reason)
    reason = parts_differ(model)
    if reason is not None:
        raise unsupported(model.config, name, reason)
    model.forward = MethodType(_forward, model)


def _forward(
    self: PreTrainedModel,
    input_ids: Tensor,
    position_ids: Tensor,
    shift_labels: Tensor,
    num_items_in_batch: Tensor,
    shift_weights: Tensor | None = None,
) -> Any:
    """Replace the model's own forward."""
    states = self.base_model(
        input_ids=input_ids, position_ids=position_ids, use_cache=False, return_dict=True
    ).last_hidden_state
    targets = shift_labels.reshape(-1)
    rows = (targets != IGNORED).nonzero()[:, 0]
    head: Any = self.get_output_embeddings()
    total = head(
        states.reshape(-1, states.shape[-1])[rows],
        targets[rows],
        None if shift_weights is None else shift_weights.reshape(-1)[rows],
    )
    return CausalLMOutputWithPast(loss=total / num_items_in_batch)  # pyright: ignore[reportArgumentType]


def trained_items(batches: list[Batch], *, by_weight: bool = True) -> Tensor:
    """Return the number of trained tokens of this rank's parts, or with `by_weight` the sum of their weights."""
    found = [
        (batch["shift_labels"] != IGNORED).sum()
        if "shift_weights" not in batch or not by_weight
        else batch["shift_weights"][batch["shift_labels"] != IGNORED].sum()
        for batch in batches
    ]
    return torch.stack(found).sum()


def part_of(arguments: TrainingArguments, size: int) -> int:
    """Return this rank's part: ranks of a group are neighbours."""
    return arguments.process_index % size
