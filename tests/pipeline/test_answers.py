"""What makes answers stale, and what only their scores."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gateau_dagster.config import Config
from tests.evaluation.quiz import with_quiz
from tests.pipeline.code_versions import raise_version
from tests.pipeline.configured import configured, stale, versions

ENGINE = {"base_url": "http://one/v1", "model": "m"}
ASKED: dict[str, Any] = {"evaluation.benchmarks": ["quiz"]}
BOTH, REPORT = {"answers/quiz", "scores/quiz"}, {"report"}


@pytest.fixture(autouse=True)
def _quiz() -> Iterator[None]:
    with with_quiz():
        yield


def asking(folder: Path, **changes: Any) -> Config:
    return configured(folder, **ASKED, **changes)


def made_again(folder: Path, before: dict[str, Any], after: dict[str, Any]) -> set[str]:
    found = stale(versions(asking(folder, **before)), versions(asking(folder, **after)))
    return {each for each in found if each.split("/")[0] in {"answers", "scores", "evaluation"}}


@pytest.mark.parametrize(
    "changes",
    [
        {"evaluation.template": "chat"},
        {"evaluation.input_length": 100},
        {"evaluation.engine": ENGINE},
        {"evaluation.quiz": {"questions": 7}},
        {"scoring.dtype": "float32"},
        {"training.seed": 7},
    ],
)
def test_what_changes_answers(changes: dict[str, Any], tmp_path: Path) -> None:
    assert made_again(tmp_path, {}, changes) == BOTH


def test_how_thoughts_are_graded_changes_the_scores_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert made_again(tmp_path, {}, {"evaluation.thoughts": "keep"}) == {"scores/quiz"}
    before = versions(asking(tmp_path))
    raise_version(monkeypatch, "gateau_dagster.evaluation.grading.CODE_VERSION")
    found = stale(before, versions(asking(tmp_path)))
    assert "scores/quiz" in found and "answers/quiz" not in found


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("base_url", "http://two/v1"),
        ("key", "KEY"),
        ("concurrency", 2),
        ("retries", 1),
        ("timeout", 9.0),
        ("token_limit", None),
    ],
)
def test_where_a_server_is_and_how_it_is_asked_changes_none(name: str, value: Any, tmp_path: Path) -> None:
    before, after = {"evaluation.engine": ENGINE}, {"evaluation.engine": {**ENGINE, name: value}}
    assert stale(versions(asking(tmp_path, **before)), versions(asking(tmp_path, **after))) == set()
    for change in ({"model": "n"}, {"temperature": None}, {"seed": 3}, {"extra_body": {"top_k": 1}}):
        assert made_again(tmp_path, before, {"evaluation.engine": {**ENGINE, **change}}) == BOTH


def test_other_code_answers_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = versions(asking(tmp_path))
    raise_version(monkeypatch, "gateau_dagster.evaluation.generation.answering.CODE_VERSION")
    assert stale(before, versions(asking(tmp_path))) == {*BOTH, "experiment", "untouched_experiment", *REPORT}
