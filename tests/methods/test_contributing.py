"""The method that CONTRIBUTING.md shows is one: found by the registry, and right."""

from collections.abc import Iterator
from pathlib import Path

import polars as pl
import pytest

from gateau_dagster import methods
from gateau_dagster.methods.method import Method
from gateau_dagster.methods.registry import all_methods
from tests.contributing import block
from tests.methods.configured import method_of

RAW = pl.DataFrame(
    {
        "sample_id": ["a", "b", "c"],
        "context": ["the cat sat on the mat", "nothing", "one two"],
        "response": ["the mat and the cat", "words words", "one two three four"],
    }
)


@pytest.fixture
def copying(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Method]:
    """The example as a file among the methods."""
    (tmp_path / "copying.py").write_text(block("Adding a method"))
    monkeypatch.setattr(methods, "__path__", [*methods.__path__, str(tmp_path)])
    all_methods.cache_clear()
    yield method_of("copying", options={"longest": 5})
    all_methods.cache_clear()


def test_the_example_against_plain_loops(copying: Method) -> None:
    found = copying.scores({asset: RAW.select(columns) for asset, columns in copying.reads().items()})
    for sample_id, context, response in RAW.iter_rows():
        words = set(response.split())
        expected = len([word for word in words if word in context.split()]) / len(words)
        assert found.filter(sample_id=sample_id)["score"].item() == pytest.approx(expected)


def test_its_option_counts(copying: Method) -> None:
    found = dict(method_of("copying", options={"longest": 3}).scores({"raw_long_sft": RAW}).iter_rows())
    assert found["a"] is None and found["c"] is None and found["b"] == 0
