"""The method that CONTRIBUTING.md shows is one: found by the registry, and right."""

from collections.abc import Iterator
from pathlib import Path

import polars as pl
import pytest

from gateau_dagster import methods
from gateau_dagster.methods.registry import ChosenMethod, all_methods, chosen_methods
from tests.contributing import block
from tests.methods.configured import configured

RAW = pl.DataFrame(
    {
        "sample_id": ["a", "b", "c"],
        "context": ["the cat sat on the mat", "nothing", "one two"],
        "response": ["the mat and the cat", "words words", "one two three four"],
    }
)


@pytest.fixture
def copying(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ChosenMethod]:
    """The example as a file among the methods."""
    (tmp_path / "copying.py").write_text(block("Adding a method"))
    monkeypatch.setattr(methods, "__path__", [*methods.__path__, str(tmp_path)])
    all_methods.cache_clear()
    yield chosen_methods(configured(method="copying", options={"copying": {"longest": 5}}))["copying"]
    all_methods.cache_clear()


def test_the_example_against_plain_loops(copying: ChosenMethod) -> None:
    config = configured()
    reads = copying.reads(config)
    found = copying.score({asset: RAW.select(columns) for asset, columns in reads.items()}, config)
    for sample_id, context, response in RAW.iter_rows():
        words = set(response.split())
        expected = len([word for word in words if word in context.split()]) / len(words)
        assert found.filter(sample_id=sample_id)["score"].item() == pytest.approx(expected)


def test_its_option_counts(copying: ChosenMethod) -> None:
    longest = configured(method="copying", options={"copying": {"longest": 3}})
    chosen = chosen_methods(longest)["copying"]
    found = dict(chosen.score({"raw_long_sft": RAW}, longest).iter_rows())
    assert found["a"] is None and found["c"] is None and found["b"] == 0
