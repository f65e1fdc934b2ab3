"""Held-out perplexity in a sentence and in bars."""

import polars as pl
import pytest

from gateau_dagster import tables
from gateau_dagster.evaluation.heldout import HELDOUT, heldout_bars, heldout_chart, heldout_sentence

from .builders import heldout_table

TABLE = pl.DataFrame(
    [("0–9", "base", 4, 1.0, 2.718), ("0–9", "checkpoint", 4, 0.5, 1.649), ("all", "base", 4, 1.0, 2.5)],
    schema=tables.schema(HELDOUT),
    orient="row",
)


@pytest.mark.parametrize(
    ("tuned", "words"), [(4.0, "20.0\u00a0% lower than"), (6.0, "20.0\u00a0% higher than"), (5.0, "is equal to")]
)
def test_heldout_sentence(tuned: float, words: str) -> None:
    all_of_checkpoint = (pl.col("bucket") == "all") & (pl.col("model") == "checkpoint")
    table = heldout_table().with_columns(perplexity=pl.when(all_of_checkpoint).then(tuned).otherwise("perplexity"))
    assert words in heldout_sentence(table)
    assert "Over 3 samples" in heldout_sentence(table)


def test_heldout_sentence_without_one_model() -> None:
    assert "cannot be compared" in heldout_sentence(heldout_table().filter(model="base"))


def test_bars_stand_beside_their_range_with_their_length() -> None:
    axis = heldout_bars(TABLE).axes[0]
    assert [bar.get_width() for bar in axis.patches] == [2.718, 2.5, 1.649]  # type: ignore[attr-defined]
    assert [tick.get_text() for tick in axis.get_yticklabels()] == ["0–9\n(4 samples)", "all\n(4 samples)"]
    assert [text.get_text() for text in axis.texts] == ["2.72", "2.50", "1.65"]


def test_large_perplexities_are_written_out() -> None:
    values = [12_345.6, 999.7, 100.0, 99.9]
    rows = [(f"{place}", "base", 1, 1.0, value) for place, value in enumerate(values)]
    axis = heldout_bars(pl.DataFrame(rows, schema=tables.schema(HELDOUT), orient="row")).axes[0]
    assert [text.get_text() for text in axis.texts] == ["12,346", "1,000", "100", "99.9"]


def test_the_chart_begins_with_all_samples() -> None:
    found = [(each.name, each.value, each.reference) for each in heldout_chart(TABLE).amounts]
    assert found == [("all base", 2.5, True), ("0–9 base", 2.718, True), ("0–9 checkpoint", 1.649, False)]
    assert not heldout_chart(TABLE.clear()).amounts


def test_no_bars_without_samples() -> None:
    assert heldout_bars(TABLE.clear()).axes[0].texts[0].get_text() == "no held-out sample could be scored"
