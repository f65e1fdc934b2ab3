"""Figures of a training mix, counted by hand."""

from typing import Any

import polars as pl
import pytest

from gateau_dagster.tables import TRAINING_MIX, schema
from gateau_dagster.training.mix_statistics import by_source, mix_sequences, mix_summary


def mix(*rows: tuple[str, str, str, int, int, int]) -> pl.DataFrame:
    """Rows of (sample_id, origin, source, tokens, trained tokens, truncated tokens)."""
    found: list[dict[str, Any]] = []
    for position, (sample_id, origin, source, tokens, trained, truncated) in enumerate(rows):
        found.append(
            {
                "position": position,
                "sample_id": sample_id,
                "origin": origin,
                "source": source,
                "input_ids": [7] * tokens,
                "labels": [-100] * (tokens - trained) + [7] * trained,
                "block_tokens": [tokens - trained, trained],
                "truncated_tokens": truncated,
            }
        )
    return pl.DataFrame(found, schema=schema(TRAINING_MIX))


MIX = mix(
    ("a", "long", "books", 100, 3, 0),
    ("b", "long", "code", 70, 10, 5),
    ("c", "short", "chat", 20, 15, 0),
    ("b", "long", "code", 70, 10, 5),
    ("d", "short", "chat", 10, 1, 90),
)


def test_every_sequence_is_counted_token_by_token() -> None:
    found = mix_sequences(MIX)
    assert found["tokens"].to_list() == [100, 70, 20, 70, 10]
    assert found["trained_tokens"].to_list() == [3, 10, 15, 10, 1]
    assert set(found.schema.values()) == {pl.String(), pl.Int64()}


def test_sources_add_up_to_the_mix() -> None:
    assert by_source(mix_sequences(MIX)).rows() == [
        ("long", "code", 2, 1, 140, 20, 2, 70, 70),
        ("long", "books", 1, 1, 100, 3, 0, 100, 100),
        ("short", "chat", 2, 2, 30, 16, 1, 15, 20),
    ]


def test_summary() -> None:
    assert mix_summary(mix_sequences(MIX)) == {
        "sequences": {"long": 3, "short": 2},
        "tokens": 270,
        "trained_tokens": 39,
        "trained_share": pytest.approx(39 / 270),
        "truncated_sequences": 3,
        "truncated_tokens": 100,
        "tokens of a sequence": {"10 %": 10, "50 %": 70, "90 %": 100, "longest": 100},
    }
