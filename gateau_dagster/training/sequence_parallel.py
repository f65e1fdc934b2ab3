"""Ulysses sequence parallelism: ranks divide each row by tokens, and in the attention by heads.

DeepSpeed exchanges tokens for heads around the attention (Jacobs et al. 2023, arXiv 2309.14509). Its wrapper drops the
masks of the layers, and so ignores document borders and sliding windows. Here the exchange surrounds our attention
within documents, which keeps both. DeepSpeed's data loader distributes batches in an order in which training cannot be
resumed. Here each rank reads the batch of its group and keeps its part. The loss is summed over the parts, and divided
once by the count of the whole global batch. It is also exact with several passes per step.
"""

# When another way is better: as long as a row fits into a GPU, ranks that read different rows exchange nothing in the
# attention. Ring attention is not bound by the number of heads. It would need a kernel that joins partial results under
# the masks of documents and windows.

from dataclasses import dataclass, field
from typing import Any, cast

import torch
from torch import Tensor
from torch.utils.data import Dataset
from transformers import (
    AttentionInterface,
    AttentionMaskInterface,
    PreTrainedModel,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)

from gateau_dagster.models.mask_pattern import UnknownAttentionError, describe_mask
from gateau_dagster.models.memory import is_out_of_memory
from gateau_dagster.models.probe import ROUNDING, probe_ids, probed_states
from gateau_dagster.models.training_attention import NAME as WHOLE_ROW
from gateau_dagster.models.training_attention import attend_row
from gateau_dagster.training.dataset import Batch, MixRows, Rows, SideBySide, TrainingDocument
from gateau_dagster.training.encode import IGNORED

NAME = "gateau_shared_rows"  # names the attention function and the mask function in transformers' registries


def parallelism(*, size: int, processes: int) -> Any:
    """Return the configuration for accelerate under which groups of `size` of the `processes` ranks share a row."""
    from accelerate.parallelism_config import ParallelismConfig
    from accelerate.utils import DeepSpeedSequenceParallelConfig

    handler = DeepSpeedSequenceParallelConfig(sp_seq_length_is_variable=True)
    # DeepSpeed requires the model's attention here. accelerate's constructor accepts only its own list of names.
    handler.sp_attn_implementation = WHOLE_ROW
    return ParallelismConfig(
        sp_size=size, sp_backend="deepspeed", dp_replicate_size=processes // size, sp_handler=handler
    )


class SharedRows(Dataset[list[TrainingDocument]]):
    """The rows in the order of the Trainer, which gives batches to ranks: each batch once per rank of a group."""

    def __init__(self, rows: MixRows, *, size: int, rows_per_batch: int) -> None:
        self._rows, self._size, self._per_batch = rows, size, rows_per_batch

    def __len__(self) -> int:
        return len(self._rows) * self._size

    def __getitem__(self, index: int) -> list[TrainingDocument]:
        batch, place = divmod(index, self._per_batch)
        return self._rows[batch // self._size * self._per_batch + place]


@dataclass(frozen=True, kw_only=True)
class PartOfRow:
    """Collator that makes a row by `whole`, pads it to a multiple of `size` tokens, and keeps part number `part`."""

    whole: SideBySide
    part: int
    size: int

    def __call__(self, rows: Rows) -> Batch:
        """Return the part of the batch of one row.

        It has `input_ids`, `position_ids`, `shift_labels` int64 [1, tokens of a part], and `shift_weights`. The other
        entries are those of the whole row. The label of token t is `shift_labels` at t: the next token, even if it is
        in the next part. Padding is a separate document.
        """
        batch = self.whole(rows)
        length = batch["input_ids"].shape[1]
        tokens = -(-length // self.size)  # rounded up
        missing = tokens * self.size - length
        sequences = {
            "input_ids": _longer(batch.pop("input_ids"), missing, 0),
            "position_ids": _longer(batch.pop("position_ids"), missing, 0),
            "shift_labels": _longer(batch.pop("labels")[:, 1:], missing + 1, IGNORED),
        }
        if "weights" in batch:
            sequences["shift_weights"] = _longer(batch.pop("weights")[:, 1:], missing + 1, 0)
        if missing:
            for side in "qk":
                borders = batch[f"cu_seq_lens_{side}"]
                batch[f"cu_seq_lens_{side}"] = torch.cat([borders, borders.new_tensor([length + missing])])
                batch[f"max_length_{side}"] = max(batch[f"max_length_{side}"], missing)
        mine = slice(self.part * tokens, (self.part + 1) * tokens)
        return batch | {name: value[:, mine].contiguous() for name, value in sequences.items()}


def _longer(values: Tensor, missing: int, fill: float) -> Tensor:
    return torch.nn.functional.pad(values, (0, missing), value=fill)


class HeadExchange(TrainerCallback):
    """Callback that surrounds the model's attention with the exchange, once DeepSpeed has formed the groups of ranks.

    By then DeepSpeed has wrapped `WHOLE_ROW` without the masks of the layers. The callback replaces that name in the
    model.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        self._model = model

    def on_train_begin(self, args: TrainingArguments, _: TrainerState, __: TrainerControl, **kwargs: Any) -> None:
        """Let the model attend to the tokens of all ranks of the group."""
        del args, kwargs
        AttentionInterface.register(NAME, exchanged_attention(self._model))
        AttentionMaskInterface.register(NAME, describe_mask)  # pyright: ignore[reportArgumentType]
        self._model.set_attn_implementation(NAME)


def exchanged_attention(model: PreTrainedModel) -> Any:
    """Return the attention function of a rank that holds a part of a row, for transformers' registry."""
    from deepspeed.runtime.sequence_parallel.parallel_state_sp import get_sequence_parallel_group
    from deepspeed.runtime.sequence_parallel.ulysses_sp import UlyssesSPAttentionHF

    config: Any = model.config.get_text_config(decoder=True)
    heads, group = config.num_attention_heads, cast(Any, get_sequence_parallel_group())
    exchange = UlyssesSPAttentionHF(
        attn=attend_row,
        batch_size=1,
        attn_head_count=heads,
        attn_head_size=getattr(config, "head_dim", None) or config.hidden_size // heads,
        kv_head_count=config.num_key_value_heads,
        num_hidden_layers=config.num_hidden_layers,
        process_group=group,
        seq_length_is_variable=True,
    )

    def attend(
        module: torch.nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: object,
        *,
        s_aux: Tensor | None = None,
        **kwargs: Any,
    ) -> tuple[Tensor, None]:
        """Attend from a part's query [1, H, t, D] to the row's key and value [1, H_kv, t, D]; return [1, t, H, D]."""
        # The exchange gathers the positions of all ranks. `attend_row` does not read them, so one number is enough.
        kwargs["position_ids"] = torch.zeros(1, 1, dtype=torch.int64, device=query.device)
        if s_aux is not None:
            s_aux = s_aux.chunk(exchange.world_size)[exchange.sp_rank]
        output, _ = exchange(module, query, key, value, attention_mask, s_aux=s_aux, **kwargs)
        return output.unflatten(-1, (heads, -1)), None

    return attend


def trained_items(batches: list[Batch], *, by_weight: bool) -> Tensor:
    """Return the number of trained tokens in this rank's parts, or with `by_weight` the sum of their weights."""
    found = [
        batch["shift_weights"][batch["shift_labels"] != IGNORED].sum()
        if by_weight
        else (batch["shift_labels"] != IGNORED).sum()
        for batch in batches
    ]
    return torch.stack(found).sum()


# A trial in one process. A short row of documents runs as a whole, and the attention of each layer is stored. Then each
# part runs separately, and its attention returns the stored values. If the parts give the states of the whole row, the
# model's tokens interact only in the attention, and the model uses the given positions.
_PARTS_NAME = "gateau_parts_of_a_row"
_LENGTHS, _PARTS = (4, 5, 3), (slice(0, 6), slice(6, 12))  # the second document is in both parts
_POSITIONS = (0, 1, 2, 3, 0, 1, 7, 8, 9, 0, 1, 5)  # some are skipped


@dataclass(kw_only=True)
class _Layers:
    """The input and output of each layer's attention over the whole row; `part` is the part that runs now."""

    inputs: list[tuple[Tensor, Tensor, Tensor]] = field(default_factory=list)  # [1, heads, tokens, size] each
    outputs: list[Tensor] = field(default_factory=list)  # [1, tokens, heads, size]
    part: slice | None = None
    layer: int = 0
    alike: bool = True  # whether each part's queries, keys and values equal those of the whole


class _UnequalPartsError(Exception):
    """The reason why the states of a part differ from those of the whole row."""


def parts_differ(model: PreTrainedModel) -> str | None:
    """Return why ranks that share a row would compute other states than one rank; None if they are equal.

    `model` attends within documents (models.training_attention). Under ZeRO-3 all ranks must call it. Out-of-memory
    errors are raised.
    """
    own = model.config._attn_implementation
    assert own is not None
    try:
        _compare(model)
    except (_UnequalPartsError, UnknownAttentionError) as error:
        return str(error)
    except (TypeError, ValueError, AttributeError, IndexError, RuntimeError) as error:
        if is_out_of_memory(error):
            raise  # the error does not depend on the model
        first = str(error).partition("\n")[0]
        return f"its code fails in a trial ({type(error).__name__}: {first})"
    finally:
        model.set_attn_implementation(own)
    return None


def _compare(model: PreTrainedModel) -> None:
    whole_row, layers = slice(0, len(_POSITIONS)), _Layers()
    wanted = _states(model, whole_row)
    most = ROUNDING[wanted.dtype]
    model.set_attn_implementation(_PARTS_NAME)
    if not _difference(_states(model, whole_row, layers), wanted) <= most:
        raise _UnequalPartsError("its attention function cannot be replaced")
    for layers.part in _PARTS:
        layers.layer = 0
        states = _states(model, layers.part, layers)
        if not (layers.alike and _difference(states, wanted[layers.part]) <= most):
            raise _UnequalPartsError("a part of a sequence comes out otherwise than in the whole")


def _states(model: PreTrainedModel, part: slice, layers: _Layers | None = None) -> Tensor:
    """Return the last hidden states [tokens, hidden] of a part of the probe's row; `layers`: see `_attend`."""
    ids = probe_ids(model, len(_POSITIONS))[None, part]
    positions = torch.tensor([_POSITIONS], device=ids.device)[:, part]
    borders = torch.tensor((0, *_LENGTHS), device=ids.device).cumsum(0).to(torch.int32)
    documents = {f"cu_seq_lens_{side}": borders for side in "qk"} | {
        f"max_length_{side}": max(_LENGTHS) for side in "qk"
    }
    told = {} if layers is None else {"gateau_layers": layers}
    return probed_states(model, input_ids=ids, position_ids=positions, **documents, **told)


def _attend(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: object,
    *,
    gateau_layers: _Layers | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Attend from query [1, H, T, D] to key and value [1, H_kv, T, D] of the whole row; return [1, T, H, D]."""
    if gateau_layers is None:
        raise _UnequalPartsError("it does not tell its attention what its forward is told")
    part, layer = gateau_layers.part, gateau_layers.layer
    if part is None:
        # DeepSpeed distributes the heads by the numbers of the configuration.
        config: Any = module.config
        text, size = config.get_text_config(decoder=True), query.shape[-1]
        named = text.num_attention_heads, text.num_key_value_heads, getattr(text, "head_dim", None) or size
        if not named == (query.shape[1], key.shape[1], size) or {key.shape[-1], value.shape[-1]} != {size}:
            raise _UnequalPartsError("its attention heads are not those that its configuration names")
        output, _ = attend_row(module, query, key, value, attention_mask, **kwargs)  # pyright: ignore[reportCallIssue]
        gateau_layers.inputs.append((query, key, value))
        gateau_layers.outputs.append(output)
        return output, None
    for found, known in zip((query, key, value), gateau_layers.inputs[layer], strict=True):
        gateau_layers.alike &= _difference(found, known[:, :, part]) <= ROUNDING[found.dtype]
    gateau_layers.layer += 1
    return gateau_layers.outputs[layer][:, part], None


def _difference(found: Tensor, expected: Tensor) -> float:
    # Relative, because the size of states differs between models and layers.
    if found.shape != expected.shape:
        return float("inf")
    return float((found - expected).norm() / expected.norm())


AttentionInterface.register(_PARTS_NAME, _attend)
AttentionMaskInterface.register(_PARTS_NAME, describe_mask)  # pyright: ignore[reportArgumentType]
