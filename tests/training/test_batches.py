"""Rows in the laid-out order, padded on the right."""

from pathlib import Path

import polars as pl
import torch

from gateau_dagster.training.batches import MixRows, PadRight
from gateau_dagster.training.encode import IGNORED
from gateau_dagster.training.order import PADDING, training_layout

from .builders import save_mix


def test_rows_follow_the_layout(tmp_path: Path) -> None:
    mix = pl.read_parquet(save_mix(tmp_path / "mix.parquet", rows=5))
    layout = training_layout(5, epochs=2, max_steps=None, global_batch=4, seed=1)
    rows = MixRows(mix.sample(fraction=1.0, shuffle=True, seed=3), layout)
    assert len(rows) == 12
    for item, row in enumerate(layout.rows):
        got = rows[item]
        assert got["row"] == row
        if row == PADDING:
            assert got["input_ids"].tolist() == [0]
            assert got["labels"].tolist() == [IGNORED]
        else:
            assert got["input_ids"].tolist() == mix["input_ids"][row].to_list()
            assert got["labels"].tolist() == mix["labels"][row].to_list()
    assert rows.ids_of([0, PADDING, 3]) == ["sample-0", "sample-3"]
    assert rows.tokens_until(2) == sum(len(mix["input_ids"][row]) for row in layout.rows[:8])
    assert rows.tokens_until(3) == 2 * int(mix["input_ids"].list.len().sum())


def test_padding_on_the_right_and_no_loss_on_the_first_token() -> None:
    def row(ids: list[int], number: int) -> dict[str, torch.Tensor]:
        return {"input_ids": torch.tensor(ids), "labels": torch.tensor(ids), "row": torch.tensor(number)}

    batch = PadRight(pad_token_id=9)([row([1, 2, 3], 4), row([5], 7)])
    assert batch["input_ids"].tolist() == [[1, 2, 3], [5, 9, 9]]
    assert batch["labels"].tolist() == [[IGNORED, 2, 3], [IGNORED] * 3]
    assert batch["attention_mask"].tolist() == [[1, 1, 1], [1, 0, 0]]
    assert batch["row"].tolist() == [4, 7]
