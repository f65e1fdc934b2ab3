"""The benchmark `quiz` among the others, for as long as it is wanted."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gateau_dagster import evaluation
from gateau_dagster.evaluation.registry import all_benchmarks

FOLDER = Path(__file__).parent / "benchmarks_in_test"


@contextmanager
def with_quiz() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(evaluation, "__path__", [*evaluation.__path__, str(FOLDER)])
        all_benchmarks.cache_clear()
        yield
    all_benchmarks.cache_clear()
