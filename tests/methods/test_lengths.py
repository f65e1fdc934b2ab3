"""Length and response length without a model: bytes, counted by hand."""

import polars as pl
import pytest

from tests.methods.configured import configured, scores_of

TEXTS = pl.DataFrame(
    {
        "sample_id": ["a", "b", "c", "d"],
        "context": ["A page.", "", "\u4e00\u9875\u6587\u5b57", "n\u00e9e \U0001f600"],
        "response": ["Yes", "\u00fc", "\u662f", ""],
    }
)


@pytest.mark.parametrize(
    ("name", "wanted"), [("length", [7 + 3, 0 + 2, 12 + 3, 9 + 0]), ("response_length", [3, 2, 3, 0])]
)
def test_without_a_model_lengths_are_bytes(name: str, wanted: list[int]) -> None:
    assert scores_of(name, {"raw_long_sft": TEXTS}) == dict(zip("abcd", map(float, wanted), strict=True))


def test_they_need_no_model_at_all() -> None:
    from gateau_dagster.pipeline.project import parse_project

    config = parse_project(
        "long_sft: {path: a}\nselection: {method: length, compare: [random]}", folder=configured().folder
    )
    assert (config.models, config.training.enabled, config.has_pair) == ({}, False, False)
