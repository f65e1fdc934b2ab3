"""The data set follows the plan; positions skip where they are asked to, the same in every attempt."""

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch

from gateau_dagster.config.training_sections import SkipConfig
from gateau_dagster.training.batch_plan import BatchPlan, Document, plan_batches
from gateau_dagster.training.encode import IGNORED
from gateau_dagster.training.relative_distances import DistanceCounts, relative_distances
from gateau_dagster.training.rows import MixRows
from gateau_dagster.training.skip_positions import position_rng, skip_positions

from .builders import save_mix


def plan_for(lengths: list[int], **settings: object) -> BatchPlan:
    common = {
        "batching": "padded",
        "epochs": 2.0,
        "max_steps": None,
        "rows_per_batch": 2,
        "accumulation": 2,
        "processes": 1,
        "pack_length": None,
        "balanced": False,
        "seed": 1,
    }
    return plan_batches(lengths, **(common | settings))  # pyright: ignore[reportArgumentType]


@pytest.fixture
def mix(tmp_path: Path) -> pl.DataFrame:
    return pl.read_parquet(save_mix(tmp_path / "mix.parquet", rows=5))


def test_items_are_the_rows_of_the_plan(mix: pl.DataFrame) -> None:
    lengths = mix["input_ids"].list.len().to_list()
    plan = plan_for(lengths, batching="packed", pack_length=60)
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


def test_tokens_and_samples_of_the_steps(mix: pl.DataFrame) -> None:
    lengths = mix["input_ids"].list.len().to_list()
    rows = MixRows(mix, plan_for(lengths))
    order = [document.row for step in (1, 2, 3) for document in plan_for(lengths).step_documents(step)]
    assert rows.ids_of_step(1) == [f"sample-{row}" for row in order[:4]]
    assert rows.tokens_until(0) == 0
    assert rows.tokens_until(2) == sum(lengths[row] for row in order[:8])
    assert rows.tokens_until(3) == 2 * sum(lengths)


def test_skips_are_drawn_by_epoch_and_sample(mix: pl.DataFrame) -> None:
    skip = SkipConfig(strategy="inner", length=500, probability=1.0)
    lengths = mix["input_ids"].list.len().to_list()
    rows = MixRows(mix, plan_for(lengths), skip=skip, seed=9)
    again = MixRows(mix, plan_for(lengths, batching="sorted"), skip=skip, seed=9)
    plans = (plan_for(lengths), plan_for(lengths, batching="sorted"))
    found = [_positions(each, plan) for each, plan in zip((rows, again), plans, strict=True)]
    assert found[0].keys() == found[1].keys()
    for document, positions in found[0].items():
        rng = position_rng(9, document.epoch, f"sample-{document.row}")
        blocks = mix["block_tokens"][document.row].to_list()
        wanted = skip_positions(blocks, strategy="inner", length=500, probability=1.0, rng=rng)
        assert positions == wanted.tolist() == found[1][document]
    assert found[0][Document(row=0, epoch=0)] != found[0][Document(row=0, epoch=1)]
    assert rows.farthest == 500 > max(lengths) == MixRows(mix, plans[0]).farthest


def test_copies_of_a_sample_skip_apart_and_as_the_plot_draws_them(mix: pl.DataFrame) -> None:
    skip = SkipConfig(strategy="inner", length=500, probability=1.0)
    settings: dict[str, Any] = {"strategy": "inner", "length": 500, "probability": 1.0, "seed": 9}
    twice = pl.concat([mix, mix]).with_columns(position=pl.Series(range(10), dtype=pl.Int32))
    lengths = twice["input_ids"].list.len().to_list()
    plan = plan_for(lengths, epochs=1.0)
    found = _positions(MixRows(twice, plan, skip=skip, seed=9), plan)
    alone = plan_for(lengths[:5], epochs=1.0)
    once = _positions(MixRows(mix, alone, skip=skip, seed=9), alone)
    counts = DistanceCounts()
    for row in range(5):
        first, second = (Document(row=each, epoch=0) for each in (row, row + 5))
        assert found[first] == once[first], "a weight does not change the first copy"
        assert found[first] != found[second]
        for each in (first, second):
            counts.add(mix["block_tokens"][row].to_list(), np.array(found[each]))
    drawn = relative_distances(twice.select("sample_id", "block_tokens").iter_rows(), **settings)
    held = np.zeros(500)
    held[: len(counts.counts())] = counts.counts() / 10
    for first, end, _, after in drawn.iter_rows():
        assert after == pytest.approx(held[first:end].mean())


def _positions(rows: MixRows, plan: BatchPlan) -> dict[Document, list[int]]:
    return {
        document: each.positions.tolist()
        for item, row in enumerate(plan.rows)
        for document, each in zip(row, rows[item], strict=True)
    }


def test_types(mix: pl.DataFrame) -> None:
    (document,) = MixRows(mix, plan_for(mix["input_ids"].list.len().to_list()))[0]
    assert document.input_ids.dtype == document.labels.dtype == document.positions.dtype == torch.int64


def test_a_mix_in_order_is_not_copied(mix: pl.DataFrame) -> None:
    plan = plan_for(mix["input_ids"].list.len().to_list())
    rows = MixRows(mix, plan)
    for name in ("input_ids", "labels"):
        held, given = (frame[name].explode(empty_as_null=True).to_numpy() for frame in (rows._mix, mix))
        assert np.shares_memory(held, given), name
