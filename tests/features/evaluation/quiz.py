"""The benchmark `quiz` among the others, for as long as it is wanted."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from gateau_dagster.features.evaluation import benchmarks
from gateau_dagster.features.evaluation.registry import all_benchmarks
from tests.features.evaluation.benchmarks_in_test.quiz import Quiz

FOLDER = Path(__file__).parent / "benchmarks_in_test"


@contextmanager
def with_quiz() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(benchmarks, "__path__", [*benchmarks.__path__, str(FOLDER)])
        all_benchmarks.cache_clear()
        yield
    all_benchmarks.cache_clear()


@pytest.fixture
def quiz(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The benchmark is known while a test runs; its name."""
    known: Any = all_benchmarks()
    monkeypatch.setitem(known, Quiz.name, Quiz)
    yield Quiz.name
