"""Rows of several sequences that are one (PackedSFT-k): trained as the plain model would on one long sequence."""

from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from gateau_dagster.config.training import TrainingConfig
from gateau_dagster.training.batch_plan import plan_batches, read_plan, write_plan
from gateau_dagster.training.dataset import MixRows, PadRight
from gateau_dagster.training.encode import IGNORED
from gateau_dagster.training.metrics import read_log
from gateau_dagster.training.model import plan_statistics
from gateau_dagster.training.spec import TrainingSpec
from gateau_dagster.training.train import plan_of, read_mix, train
from tests.training.builders import make_spec
from tests.training.slow_loop import slow_training

ROWS: dict[str, Any] = {"pack_length": 90, "balanced": False, "max_steps": 4, "weight_decay": 0.1}


def trained(folder: Path, **changes: Any) -> TrainingSpec:
    spec = make_spec(folder, name=changes["batching"], **ROWS | changes)
    train(spec, lambda metrics: None)
    return spec


@pytest.mark.parametrize("loss", ["token", pytest.param("sequence", marks=pytest.mark.long)])
def test_a_row_is_one_long_sequence_of_the_plain_model(tmp_path: Path, loss: str) -> None:
    spec = trained(tmp_path, batching="concatenated", loss=loss)
    losses, norms, weights = slow_training(spec)
    log = read_log(spec.log)
    assert [step["loss"] for step in log] == pytest.approx(losses, abs=1e-5, rel=0)
    assert [step["grad_norm"] for step in log] == pytest.approx(norms, rel=1e-4)
    for name, value in load_file(spec.output / "model.safetensors").items():
        torch.testing.assert_close(value, weights[name], atol=2e-5, rtol=0)


def test_the_same_rows_packed_learn_the_same_tokens_by_another_attention(tmp_path: Path) -> None:
    packed, whole = (trained(tmp_path, batching=batching, max_steps=1) for batching in ("packed", "concatenated"))
    plans = [plan_of(spec, read_mix(spec.mix)) for spec in (packed, whole)]
    assert plans[0].rows == plans[1].rows
    assert max(len(row) for row in plans[0].rows) > 1
    logs = [read_log(spec.log)[0] for spec in (packed, whole)]
    assert logs[0]["tokens"] == logs[1]["tokens"]
    assert abs(logs[0]["loss"] - logs[1]["loss"]) > 1e-3
    lengths = read_mix(whole.mix)["input_ids"].list.len().to_list()
    longest = max(sum(lengths[each.row] for each in row) for row in plans[1].rows)
    windows = [
        AutoModelForCausalLM.from_pretrained(spec.output).config.max_position_embeddings for spec in (packed, whole)
    ]
    assert windows == [64, longest] and longest > 64, "positions run on over the row"
    assert (packed.resume_key, packed.side_by_side) != (whole.resume_key, whole.side_by_side)


def test_a_row_costs_the_square_of_all_its_tokens(tmp_path: Path) -> None:
    lengths = [3, 4, 9, 2, 8, 1]  # the rows have 3 + 4 + 2 + 1, 9 and 8 tokens
    settings: dict[str, Any] = {"epochs": 1.0, "max_steps": None, "pack_length": 10, "balanced": True, "seed": 0}
    settings |= {"rows_per_batch": 1, "accumulation": 2, "processes": 1}
    packed, plan = (plan_batches(lengths, batching=batching, **settings) for batching in ("packed", "concatenated"))
    tokens = [[sum(lengths[each.row] for each in row) for row in found.rows] for found in (packed, plan)]
    assert tokens == [[9, 10, 8, 0], [10, 9, 8, 0]], "the dearest row of a step comes first"
    assert packed.costs(lengths).tolist() == [81, 9 + 16 + 4 + 1, 64, 0]
    assert plan.costs(lengths).tolist() == [100, 81, 64, 0]
    settings |= {"accumulation": 1, "processes": 2}
    two = plan_batches(lengths, batching="concatenated", **settings)
    figures = plan_statistics(two, lengths, pack_length=10)
    assert figures.imbalance == pytest.approx((100 + 64) / (90.5 + 32))
    assert (figures.fill_rate, figures.documents) == (pytest.approx(27 / 30), 6)
    write_plan(plan, tmp_path / "plan.parquet")
    assert read_plan(tmp_path / "plan.parquet") == plan


def test_no_document_s_first_token_is_learned(tmp_path: Path) -> None:
    spec = make_spec(tmp_path, batching="concatenated", **ROWS)
    mix = read_mix(spec.mix)
    plan = plan_of(spec, mix)
    rows = MixRows(mix, plan)
    batch = PadRight(pad_token_id=1, weighted=True)([rows[0], [], rows[1]])
    for at, row in ((0, plan.rows[0]), (2, plan.rows[1])):
        ids = [token for each in row for token in mix["input_ids"][each.row]]
        labels = [label for each in row for label in (IGNORED, *mix["labels"][each.row].to_list()[1:])]
        assert batch["input_ids"][at, : len(ids)].tolist() == ids
        assert batch["labels"][at].tolist() == labels + [IGNORED] * (batch["labels"].shape[1] - len(labels))
        assert batch["attention_mask"][at].sum() == len(ids)
    assert batch["row"].tolist() == [each.row for row in plan.rows[:2] for each in row]
    assert float(batch["weights"][batch["labels"] != IGNORED].sum()) == pytest.approx(len(batch["row"]))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"preset": "skipalign"}, "skip: spreads the positions of one conversation.* or skip: null"),
        ({"sequences_per_step": 4}, "give tokens_per_step instead"),
        ({"tokens_per_step": 100, "pack_length": 64}, "batch_size x processes x pack_length"),
        ({"pack_length": 32}, "32 is below max_length"),
    ],
)
def test_what_does_not_go_with_it_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        TrainingConfig.model_validate({"batching": "concatenated", "max_length": 64} | changes)


def test_it_is_the_baseline_of_skipalign_s_own_recipe() -> None:
    baseline = {"preset": "skipalign", "batching": "concatenated", "pack_length": 16_384, "skip": None}
    training = TrainingConfig.model_validate(baseline)
    assert (training.max_length, training.row_tokens, training.learning_rate) == (4_096, 16_384, 1e-5)


def test_processes_may_share_such_a_row() -> None:
    shared = {"batching": "concatenated", "processes": 4, "sequence_parallel": 2, "deepspeed": "zero3"}
    assert TrainingConfig.model_validate(shared | {"tokens_per_step": 2**20}).passes_per_step == 8
