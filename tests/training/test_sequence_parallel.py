"""Parts of sequences and the order of shared batches. Whole trainings by several ranks are in test_ranks.py."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from gateau_dagster.training.dataset import MixRows, PadRight
from gateau_dagster.training.encode import IGNORED
from gateau_dagster.training.response_loss import use_chunked_loss
from gateau_dagster.training.sequence_parallel import (
    PartOfSequence,
    SharedRows,
    parallelism,
    share_sequences,
    trained_items,
)
from gateau_dagster.training.train import plan_of, read_mix
from tests.error_codes import refused
from tests.training.builders import make_model, make_spec


def rows_of(folder: Path, **changes: Any) -> MixRows:
    spec = make_spec(folder, deepspeed={"zero_optimization": {"stage": 3}}, **changes)
    mix = read_mix(spec.mix)
    return MixRows(mix, plan_of(spec, mix))


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("weighted", [False, True])
def test_parts_side_by_side_are_the_whole_batch(tmp_path: Path, size: int, weighted: bool) -> None:
    rows = [rows_of(tmp_path)[index] for index in range(3)]
    whole = PadRight(pad_token_id=1, weighted=weighted)
    batch = whole(rows)
    parts = [PartOfSequence(whole=whole, part=part, size=size)(rows) for part in range(size)]
    length = batch["input_ids"].shape[1]
    joined = {name: torch.cat([part[name] for part in parts], 1) for name in parts[0] if name != "row"}
    assert {part["input_ids"].shape[1] for part in parts} == {-(-length // size)}
    assert torch.equal(joined["input_ids"][:, :length], batch["input_ids"])
    assert torch.equal(joined["position_ids"][0], torch.arange(joined["input_ids"].shape[1]))
    assert torch.equal(joined["shift_labels"][:, : length - 1], batch["labels"][:, 1:])
    assert (joined["shift_labels"][:, length - 1 :] == IGNORED).all()
    assert (joined["input_ids"][:, length:] == 1).all()
    assert all(part["row"].tolist() == batch["row"].tolist() for part in parts)
    trained = batch["labels"][:, 1:] != IGNORED
    wanted = batch["weights"][:, 1:][trained].sum() if weighted else trained.sum()
    torch.testing.assert_close(sum(trained_items([part]) for part in parts), wanted)
    assert sum(trained_items([part], by_weight=False) for part in parts) == trained.sum()


@pytest.mark.parametrize(("processes", "size"), [(2, 2), (4, 2), (6, 3)])
def test_every_rank_reads_the_batch_of_its_group(tmp_path: Path, processes: int, size: int) -> None:
    rows = rows_of(tmp_path, processes=processes, sequence_parallel=size, batch_size=2, gradient_accumulation=3)
    shared = SharedRows(rows, size=size, rows_per_batch=2)
    assert len(shared) == size * len(rows)
    for passed in range(len(rows) // (2 * processes // size)):
        for rank in range(processes):
            dealt = [shared[(passed * processes + rank) * 2 + place] for place in range(2)]  # as accelerate deals out
            meant = [rows[(passed * (processes // size) + rank // size) * 2 + place] for place in range(2)]
            assert [[each.row for each in row] for row in dealt] == [[each.row for each in row] for row in meant]


def test_the_loss_of_the_parts_adds_up(tmp_path: Path) -> None:
    """One part: the loss of the whole sequence, by the model's own forward."""
    spec = make_spec(tmp_path)
    rows = [rows_of(tmp_path)[index] for index in range(2)]
    model = AutoModelForCausalLM.from_pretrained(spec.base_model)
    whole = PadRight(pad_token_id=1)
    batch = whole(rows)
    batch.pop("row")
    wanted = model(**batch, num_items_in_batch=7).loss
    use_chunked_loss(model)
    share_sequences(model, size=1)
    part = PartOfSequence(whole=whole, part=0, size=1)(rows)
    part.pop("row")
    torch.testing.assert_close(model(**part, num_items_in_batch=torch.tensor(7)).loss, wanted)


@pytest.mark.parametrize(
    ("kind", "size", "message"),
    [
        ("llama", 3, "cannot be divided among 3 processes"),
        ("mistral", 2, "do not see the whole sequence"),
        ("gpt2", 2, "does not name num_attention_heads and num_key_value_heads"),
        ("mamba", 2, "does not name num_attention_heads"),
        ("llama4_text", 2, "do not see the whole sequence"),
        ("stablelm", 2, "does not use transformers' attention interface"),
    ],
)
def test_models_that_cannot_share(kind: str, size: int, message: str) -> None:
    with refused("training.sequence_parallel", message):
        share_sequences(make_model(kind), size=size)


@pytest.mark.parametrize("config", [None, {"zero_optimization": {"stage": 0}},
                                    {"zero_optimization": {"stage": 3, "reduce_scatter": False}}])  # fmt: skip
def test_settings_of_deepspeed_that_scale_the_gradient_otherwise(config: dict[str, Any] | None) -> None:
    with refused("training.sequence_parallel", "ZeRO.*1.*3.*reduce_scatter"):
        parallelism(size=2, processes=2, deepspeed=config)
