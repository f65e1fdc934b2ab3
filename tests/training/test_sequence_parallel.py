"""Parts of sequences and the order of shared batches. Whole trainings by several ranks are in test_ranks.py."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from gateau_dagster.models.training_attention import attend_within_documents
from gateau_dagster.training.dataset import MixRows, PadRight, SideBySide
from gateau_dagster.training.encode import IGNORED
from gateau_dagster.training.readiness import check_heads, check_sharding, check_shareable
from gateau_dagster.training.response_loss import use_chunked_loss
from gateau_dagster.training.sequence_parallel import (
    PartOfRow,
    SharedRows,
    trained_items,
)
from gateau_dagster.training.train import plan_of, read_mix
from tests.kit.error_codes import refused
from tests.kit.tiny_models import model_config
from tests.training.builders import make_model, make_spec


def rows_of(folder: Path, **changes: Any) -> MixRows:
    spec = make_spec(folder, deepspeed={"zero_optimization": {"stage": 3}}, **changes)
    mix = read_mix(spec.mix)
    return MixRows(mix, plan_of(spec, mix))


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("joined", [False, True])
def test_parts_side_by_side_are_the_whole_row(tmp_path: Path, size: int, weighted: bool, joined: bool) -> None:
    rows = [[*rows_of(tmp_path)[0], *rows_of(tmp_path)[1]], [], rows_of(tmp_path)[2]]
    whole = SideBySide(weighted=weighted, joined=joined)
    batch = whole(rows)
    parts = [PartOfRow(whole=whole, part=part, size=size)(rows) for part in range(size)]
    length = batch["input_ids"].shape[1]
    tokens = -(-length // size)
    split = ("input_ids", "position_ids", "shift_labels", "shift_weights")
    joint = {name: torch.cat([part[name] for part in parts], 1) for name in split if name in parts[0]}
    assert {part["input_ids"].shape[1] for part in parts} == {tokens}
    for name in ("input_ids", "position_ids"):
        assert torch.equal(joint[name][:, :length], batch[name])
    assert torch.equal(joint["shift_labels"][:, : length - 1], batch["labels"][:, 1:])
    assert (joint["shift_labels"][:, length - 1 :] == IGNORED).all()
    borders = batch["cu_seq_lens_q"].tolist()
    assert len(borders) == (3 if joined else 4)
    for part in parts:
        assert part["cu_seq_lens_q"].tolist() == borders + ([tokens * size] if tokens * size > length else [])
        assert part["row"].tolist() == batch["row"].tolist()
        assert not {"labels", "weights"} & part.keys()
    trained = batch["labels"][:, 1:] != IGNORED
    wanted = batch["weights"][:, 1:][trained].sum() if weighted else trained.sum()
    torch.testing.assert_close(sum(trained_items([part], by_weight=weighted) for part in parts), wanted)
    assert sum(trained_items([part], by_weight=False) for part in parts) == trained.sum()


def test_a_row_of_padding_longer_than_its_documents() -> None:
    part = PartOfRow(whole=SideBySide(weighted=True), part=3, size=4)([[]])
    assert part["input_ids"].shape == (1, 1)
    assert part["cu_seq_lens_q"].tolist() == [0, 1, 4]
    assert part["max_length_q"] == 3


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
    """One part: the loss of the whole batch, by the model's own forward."""
    spec = make_spec(tmp_path)
    rows = [rows_of(tmp_path)[index] for index in range(2)]
    model = AutoModelForCausalLM.from_pretrained(spec.base_model)
    batch = PadRight(pad_token_id=1)(rows)
    batch.pop("row")
    wanted = model(**batch, num_items_in_batch=7).loss
    use_chunked_loss(model)
    attend_within_documents(model)
    check_shareable(model, size=1)
    part = PartOfRow(whole=SideBySide(), part=0, size=1)(rows)
    part.pop("row")
    torch.testing.assert_close(model(**part, num_items_in_batch=torch.tensor(7)).loss, wanted)


@pytest.mark.parametrize(
    ("kind", "size", "changes", "message"),
    [
        ("llama", 3, {}, "cannot be divided among 3 processes"),
        ("gpt2", 2, {}, "does not name num_attention_heads and num_key_value_heads"),
        ("mamba", 2, {}, "does not name num_attention_heads"),
        ("llama4_text", 2, {}, "counts tokens from the begin of each part"),
        ("lfm2", 2, {"layer_types": ["conv", "full_attention"]}, "has conv layers"),
        ("llama", 2, {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}},
         "rotary embedding depends on the length"),
    ],
)  # fmt: skip
def test_models_that_cannot_share(kind: str, size: int, changes: dict[str, Any], message: str) -> None:
    with refused("training.sequence_parallel", message):
        check_heads(model_config(kind, **changes), size, name="it")


def test_a_model_whose_trial_fails() -> None:
    model = make_model("opt", dtype=torch.float32)
    attend_within_documents(model)
    with refused("training.sequence_parallel", "heads are not those"):
        check_shareable(model, size=2)


@pytest.mark.parametrize("config", [None, {"zero_optimization": {"stage": 0}},
                                    {"zero_optimization": {"stage": 3, "reduce_scatter": False}}])  # fmt: skip
def test_settings_of_deepspeed_that_scale_the_gradient_otherwise(config: dict[str, Any] | None) -> None:
    with refused("training.sequence_parallel", "ZeRO.*1.*3.*reduce_scatter"):
        check_sharding(config)
