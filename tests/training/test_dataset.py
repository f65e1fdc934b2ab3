"""Rows of the plan as documents, and batches of them."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch

from gateau_dagster.config.training import SkipConfig
from gateau_dagster.training.batch_plan import BatchPlan, MixDocument
from gateau_dagster.training.dataset import (
    MixRows,
    PadRight,
    SideBySide,
    TrainingDocument,
    loss_weights,
    prefix_weights,
    sequence_weights,
)
from gateau_dagster.training.encode import IGNORED
from gateau_dagster.training.metrics import StepLog, peak_memory_bytes, read_log, rewind_log
from gateau_dagster.training.skip_positions import DistanceCounts, position_rng, relative_distances, skip_positions
from tests.storage.builders import flipped
from tests.training.builders import make_plan, save_mix, slow_prefix_weights


@pytest.fixture
def mix(tmp_path: Path) -> pl.DataFrame:
    return pl.read_parquet(save_mix(tmp_path / "mix.parquet", rows=5))


def test_items_are_the_rows_of_the_plan(mix: pl.DataFrame) -> None:
    lengths = mix["input_ids"].list.len().to_list()
    plan = make_plan(lengths, batching="packed", pack_length=60)
    rows = MixRows(mix.sample(fraction=1.0, shuffle=True, seed=3), plan)
    assert len(rows) == len(plan.rows)
    assert max(len(rows[item]) for item in range(len(rows))) > 1
    for item, row in enumerate(plan.rows):
        found = rows[item]
        assert [each.row for each in found] == [each.row for each in row]
        for each in found:
            assert each.input_ids.tolist() == mix["input_ids"][each.row].to_list()
            assert each.labels.tolist() == [IGNORED, *mix["labels"][each.row].to_list()[1:]]
            assert each.positions.tolist() == list(range(lengths[each.row]))
            assert each.input_ids.dtype == each.labels.dtype == each.positions.dtype == torch.int64


def test_far_and_rare_tokens_weigh_more(mix: pl.DataFrame) -> None:
    """EXACT; the buckets of the tail are 16-31 and 32-63, of which the second has fewer tokens."""
    plan = make_plan(mix["input_ids"].list.len().to_list())
    rows, expected = MixRows(mix, plan, long_prefix=16), slow_prefix_weights(mix, least=16)
    assert rows._document(MixDocument(row=0, epoch=0)).weights is not None
    for row, weights in enumerate(expected):
        assert loss_weights(rows._document(MixDocument(row=row, epoch=0))).tolist() == pytest.approx(weights, rel=1e-6)
    assert 1 < expected[0][16] == expected[0][31] < expected[0][32] == expected[0][39]
    assert {*prefix_weights(np.ones(40), least=64).tolist()} == {1.0}
    rarer = prefix_weights(np.array([1.0] * 32 + [0.0] * 8), least=16)
    assert rarer[32:].tolist() == [1.0] * 8 and rarer[16:32].tolist() == pytest.approx([1.15] * 16)


def test_tokens_and_samples_of_the_steps(mix: pl.DataFrame) -> None:
    lengths = mix["input_ids"].list.len().to_list()
    rows = MixRows(mix, make_plan(lengths))
    order = [document.row for step in (1, 2, 3) for document in make_plan(lengths).step_documents(step)]
    assert rows.ids_of_step(1) == [f"sample-{row}" for row in order[:4]]
    assert rows.tokens_until(0) == 0
    assert rows.tokens_until(2) == sum(lengths[row] for row in order[:8])
    assert rows.tokens_until(3) == 2 * sum(lengths)


def test_skips_are_drawn_by_epoch_and_sample(mix: pl.DataFrame) -> None:
    skip = SkipConfig(strategy="inner", length=500, probability=1.0)
    lengths = mix["input_ids"].list.len().to_list()
    rows = MixRows(mix, make_plan(lengths), skip=skip, seed=9)
    again = MixRows(mix, make_plan(lengths, batching="sorted"), skip=skip, seed=9)
    plans = (make_plan(lengths), make_plan(lengths, batching="sorted"))
    found = [_positions(each, plan) for each, plan in zip((rows, again), plans, strict=True)]
    assert found[0].keys() == found[1].keys()
    for document, positions in found[0].items():
        rng = position_rng(9, document.epoch, f"sample-{document.row}")
        blocks = mix["block_tokens"][document.row].to_list()
        wanted = skip_positions(blocks, strategy="inner", length=500, probability=1.0, rng=rng)
        assert positions == wanted.tolist() == found[1][document]
    assert found[0][MixDocument(row=0, epoch=0)] != found[0][MixDocument(row=0, epoch=1)]
    assert rows.farthest == 500 > max(lengths) == MixRows(mix, plans[0]).farthest


def test_copies_of_a_sample_skip_apart_and_as_the_plot_draws_them(mix: pl.DataFrame) -> None:
    skip = SkipConfig(strategy="inner", length=500, probability=1.0)
    settings: dict[str, Any] = {"strategy": "inner", "length": 500, "probability": 1.0, "seed": 9}
    twice = pl.concat([mix, mix]).with_columns(position=pl.Series(range(10), dtype=pl.Int32))
    lengths = twice["input_ids"].list.len().to_list()
    plan = make_plan(lengths, epochs=1.0)
    found = _positions(MixRows(twice, plan, skip=skip, seed=9), plan)
    alone = make_plan(lengths[:5], epochs=1.0)
    once = _positions(MixRows(mix, alone, skip=skip, seed=9), alone)
    counts = DistanceCounts()
    for row in range(5):
        first, second = (MixDocument(row=each, epoch=0) for each in (row, row + 5))
        assert found[first] == once[first], "a weight does not change the first copy"
        assert found[first] != found[second]
        for each in (first, second):
            counts.add(mix["block_tokens"][row].to_list(), np.array(found[each]))
    drawn = relative_distances(twice.select("sample_id", "block_tokens").iter_rows(), **settings)
    held = np.zeros(500)
    held[: len(counts.counts())] = counts.counts() / 10
    for first, end, _, after in drawn.iter_rows():
        assert after == pytest.approx(held[first:end].mean())


def _positions(rows: MixRows, plan: BatchPlan) -> dict[MixDocument, list[int]]:
    return {
        document: each.positions.tolist()
        for item, row in enumerate(plan.rows)
        for document, each in zip(row, rows[item], strict=True)
    }


def test_a_mix_in_order_is_not_copied(mix: pl.DataFrame) -> None:
    plan = make_plan(mix["input_ids"].list.len().to_list())
    rows = MixRows(mix, plan)
    for name in ("input_ids", "labels"):
        held, given = (frame[name].explode(empty_as_null=True).to_numpy() for frame in (rows._mix, mix))
        assert np.shares_memory(held, given), name


def document(ids: list[int], row: int, positions: list[int] | None = None) -> TrainingDocument:
    labels = torch.tensor([IGNORED, *ids[1:]])
    return TrainingDocument(
        row=row, input_ids=torch.tensor(ids), labels=labels, positions=torch.tensor(positions or list(range(len(ids))))
    )


def test_padding_on_the_right() -> None:
    """Rows of several documents are concatenated ones: no document's first token is learned."""
    batch = PadRight(pad_token_id=9)([[document([1, 2], 4), document([3, 8], 1)], [document([5], 7)], []])
    assert batch["input_ids"].tolist() == [[1, 2, 3, 8], [5, 9, 9, 9], [0, 9, 9, 9]]
    assert batch["labels"].tolist() == [[IGNORED, 2, IGNORED, 8], [IGNORED] * 4, [IGNORED] * 4]
    assert batch["attention_mask"].tolist() == [[1, 1, 1, 1], [1, 0, 0, 0], [1, 0, 0, 0]]
    assert batch["row"].tolist() == [4, 1, 7]
    assert "weights" not in batch


def test_side_by_side_with_their_own_positions() -> None:
    rows = [[document([1, 2, 3], 4, [0, 1, 90]), document([5, 6], 7)], [], [document([8], 2)]]
    batch = SideBySide()(rows)
    assert batch["input_ids"].tolist() == [[1, 2, 3, 5, 6, 8]]
    assert batch["labels"].tolist() == [[IGNORED, 2, 3, IGNORED, 6, IGNORED]]
    assert batch["position_ids"].tolist() == [[0, 1, 90, 0, 1, 0]]
    assert batch["cu_seq_lens_q"].tolist() == batch["cu_seq_lens_k"].tolist() == [0, 3, 5, 6]
    assert batch["cu_seq_lens_q"].dtype == torch.int32
    assert batch["max_length_q"] == batch["max_length_k"] == 3
    assert batch["row"].tolist() == [4, 7, 2]
    assert "attention_mask" not in batch


def test_a_batch_without_documents_has_one_token_that_nothing_learns() -> None:
    batch = SideBySide(weighted=True)([[], []])
    assert batch["input_ids"].tolist() == [[0]]
    assert batch["labels"].tolist() == [[IGNORED]]
    assert batch["cu_seq_lens_q"].tolist() == [0, 1]
    assert batch["row"].tolist() == []
    assert (batch["weights"] * (batch["labels"] != IGNORED)).sum() == 0


def test_weights_of_a_sequence_sum_to_one_over_its_trained_tokens() -> None:
    labels = torch.tensor([IGNORED, 4, IGNORED, 5, 6])
    assert float(sequence_weights(labels)[labels != IGNORED].sum()) == 1.0
    documents = [document([1, 2, 3], 0), document([4, 5], 1)]
    packed = SideBySide(weighted=True)([documents])
    padded = PadRight(pad_token_id=0, weighted=True)([[each] for each in documents])
    for batch in (packed, padded):
        assert float(batch["weights"][batch["labels"] != IGNORED].sum()) == 2.0
        assert batch["weights"].dtype == torch.float32


def test_a_torn_last_line_is_left_out_and_later_steps_are_forgotten(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    assert read_log(path) == []
    path.write_text('{"step": 1}\n{"step": 2}\n{"step": 3}\n{"ste')
    assert read_log(path) == [{"step": 1}, {"step": 2}, {"step": 3}]
    said: list[str] = []
    rewind_log(path, 2, said.append)
    assert read_log(path) == [{"step": 1}, {"step": 2}] and not said


def test_no_flipped_bit_of_a_line_costs_another_line_or_is_taken_for_the_truth(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    steps = [{"step": step, "loss": 2.5, "grad_norm": float("nan")} for step in (1, 2, 3)]
    path.write_text("".join(json.dumps(metrics) + "\n" for metrics in steps))
    rewind_log(path, 3)
    whole, told = path.read_bytes(), 0
    first = whole.index(b"\n")
    for bit in range(8 * first):
        said: list[str] = []
        path.write_bytes(flipped(whole, bit))
        rewind_log(path, 3, said.append)
        left = read_log(path)
        assert [metrics["step"] for metrics in left][-2:] == [2, 3]
        if said:
            assert "metrics.jsonl has " in said[0] and "damaged line" in said[0] and len(left) == 2
            told += 1
        else:
            assert [left[0][name] for name in ("step", "loss")] == [1, 2.5], "white space, or the digest's name"
    assert told > 7 * first


@pytest.mark.parametrize("batching", ["padded", "packed", "concatenated"])
def test_the_work_of_a_step_is_that_of_its_documents(tmp_path: Path, batching: str) -> None:
    mix = pl.read_parquet(save_mix(tmp_path / "mix.parquet", rows=9))
    packs = batching != "padded"
    plan = make_plan(
        mix["input_ids"].list.len().to_list(), batching=batching, epochs=3.0, pack_length=70 if packs else None
    )
    rows = MixRows(mix, plan)
    assert packs or any(not row for row in plan.rows), "rows that fill up a pass"
    for step in range(1, plan.steps + 1):
        lengths, trained = [], 0
        for index in range((step - 1) * plan.rows_per_step, step * plan.rows_per_step):
            documents = rows[index]
            sizes = [len(each.input_ids) for each in documents]
            lengths += [sum(sizes)] if batching == "concatenated" and sizes else sizes
            trained += sum(int((each.labels[1:] != IGNORED).sum()) for each in documents)
        assert rows.work_of_step(step) == (lengths, trained)


def test_every_step_is_logged_and_reported(tmp_path: Path) -> None:
    mix = pl.read_parquet(save_mix(tmp_path / "mix.parquet", rows=6))
    rows = MixRows(mix, make_plan(mix["input_ids"].list.len().to_list(), epochs=1, accumulation=1))
    seen: list[dict[str, Any]] = []
    log = StepLog(tmp_path / "metrics.jsonl", rows=rows, first_step=1, total=3, report=seen.append)
    log.record(2, loss=2.5, learning_rate=0.1, grad_norm=None)
    log.record(3, loss=1.5, learning_rate=0.0, grad_norm=4.0)
    assert read_log(tmp_path / "metrics.jsonl") == seen
    assert [metrics["step"] for metrics in seen] == [2, 3]
    assert [metrics["loss"] for metrics in seen] == [2.5, 1.5]
    assert seen[1]["tokens"] == sum(rows.lengths)
    assert seen[0]["seconds_left"] > 0 == seen[1]["seconds_left"]
    assert all(metrics["tokens_per_second"] > 0 for metrics in seen)
    assert [metrics["mfu"] for metrics in seen] == [None, None], "on a CPU"
    assert all(50 * 2**20 < metrics["host_memory_bytes"] < 2**40 for metrics in seen)
    done = rows.tokens_until(3) - rows.tokens_until(2)
    assert seen[1]["seconds"] * seen[1]["tokens_per_second"] == pytest.approx(done)
    log = StepLog(
        tmp_path / "other.jsonl", rows=rows, first_step=2, total=3, report=seen.append, work=lambda step: 6.0 * step,
        peak=1e3,
    )  # fmt: skip
    log.record(3, loss=1.5, learning_rate=0.0, grad_norm=4.0)
    assert seen[2]["mfu"] * 1e3 * seen[2]["seconds"] == pytest.approx(18)
    assert 50 * 2**20 < peak_memory_bytes() < 2**40, "that of a process with torch"
