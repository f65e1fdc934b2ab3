"""The same comparison on real prose: the text of the Apache licence, with its headings, lists and long sentences."""

from pathlib import Path

import pytest

from gateau_dagster.data.sample import Sample

from .agreement import compare
from .builders import loaded_model
from .scored import scoring

LICENCE = (Path(__file__).parents[2] / "LICENSE").read_text()


def passages() -> list[Sample]:
    """Ragged pieces of the licence, each with a question about it and a passage of it as the answer."""
    pieces = [(0, 3000, 180), (3000, 4100, 95), (5000, 5060, 40), (7000, 9350, 330)]
    return [
        Sample(
            sample_id=f"licence-{start}",
            source="licence",
            context=LICENCE[start:end],
            instruction="What does this part of the licence say?",
            response=LICENCE[end : end + length].strip(),
        )
        for start, end, length in pieces
    ]


@pytest.mark.parametrize(("max_length", "truncated"), [(4096, 0), (600, 3)])
@pytest.mark.parametrize("kind", ["llama", "qwen3", "mistral"])
def test_agrees_with_the_reference_on_real_prose(kind: str, max_length: int, truncated: int) -> None:
    assert compare(loaded_model(kind), scoring(), max_length, passages()) == truncated


@pytest.mark.parametrize("batch_tokens", [1, 700])
def test_agrees_with_the_reference_on_real_prose_in_any_batch(batch_tokens: int) -> None:
    compare(loaded_model("llama"), scoring(batch_tokens=batch_tokens, segment_length=100), 4096, passages())
