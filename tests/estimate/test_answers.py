"""Answers of a plan: how many, by what is asked; how long, by what the store holds, else by the device."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from gateau_dagster import tables
from gateau_dagster.estimate.amounts import Amount, planned_amounts
from gateau_dagster.estimate.estimator import Estimator
from gateau_dagster.models import devices
from gateau_dagster.pipeline.project import load_project
from gateau_dagster.pipeline.state import State
from gateau_dagster.storage import Stamp
from tests.evaluation.quiz import with_quiz
from tests.evaluation.ruler_files import write_ruler
from tests.project import make_project

VARIANTS = {"methods": ["length"], "fractions": [0.25, 0.5], "also": ["full"]}
MODELS = 5  # with base and checkpoint
RULER = {"official": "ruler", "tasks": ["vt"], "lengths": [512], "samples": 7}


@pytest.fixture(autouse=True)
def _quiz(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(devices, "matrix_product_speed", lambda *_: 1e9)
    with with_quiz():
        yield


def _state(folder: Path, benchmarks: list[str], **evaluation: Any) -> State:
    write_ruler(folder / "ruler")
    options: dict[str, Any] = {"selection": {"method": "length", "fraction": 0.5}, "variants": VARIANTS}
    asked = {"benchmarks": benchmarks, **evaluation}
    return State(
        config=load_project(make_project(folder, samples=24, shards=2, training=True, evaluation=asked, **options))
    )


def _planned(state: State) -> dict[str, Amount]:
    return {each.asset: each for each in planned_amounts(state, state.whole_plan(), Estimator(state))}


def _range(planned: Amount) -> tuple[float, float]:
    assert planned.seconds_low is not None and planned.seconds_high is not None
    return planned.seconds_low, planned.seconds_high


def test_before_a_model_has_answered_the_device_says_how_long_it_takes(tmp_path: Path) -> None:
    found = _planned(_state(tmp_path, ["quiz", "ruler"], quiz={"questions": 6}, ruler=RULER))
    quiz, ruler = found["answers/quiz"], found["answers/ruler"]
    assert (quiz.models, quiz.amount, ruler.amount) == (MODELS, 6 * MODELS, 7 * MODELS)
    assert quiz.grounds.startswith("the speed of one matrix product on this device")
    low, high = _range(quiz)
    assert 0 < 6 * low < high
    longer = _planned(_state(tmp_path / "longer", ["quiz"], quiz={"questions": 6, "words": 400}))["answers/quiz"]
    assert _range(longer)[1] > 10 * high
    twice = _planned(_state(tmp_path / "twice", ["quiz"], quiz={"questions": 12}))["answers/quiz"]
    assert _range(twice)[1] < 2.1 * high, "more of them are answered side by side"


def test_a_server_s_time_is_not_known_before(tmp_path: Path) -> None:
    engine = {"base_url": "http://127.0.0.1:9/v1", "model": "m"}
    found = _planned(_state(tmp_path, ["quiz"], quiz={"questions": 6}, engine=engine))["answers/quiz"]
    assert (found.amount, found.seconds_low, found.seconds_high) == (6 * MODELS, None, None)
    assert found.grounds == "not known before one model has answered"


def test_answers_take_what_they_took_another_model(tmp_path: Path) -> None:
    state = _state(tmp_path, ["ruler"], ruler=RULER)
    rows = [(f"q{number}", 0, "", "", "", 1, 0, 1, "stop", 3.0) for number in range(4)]
    given = pl.DataFrame(rows, schema=tables.schema(tables.ANSWERS), orient="row")
    for name in ("base", "full"):
        state.store.write(given, "answers/ruler", name, Stamp(fingerprint=name))
    known = _planned(state)["answers/ruler"]
    assert (known.amount, known.seconds_low, known.seconds_high) == (20, 40.0, 90.0)
    assert known.grounds == "the answers of this store"


def test_what_another_benchmark_asks_first_takes_nothing(tmp_path: Path) -> None:
    both = ["quiz", "quiz_again"]
    same = _planned(_state(tmp_path, both, quiz={"questions": 6}, quiz_again={"questions": 6}))
    assert same["answers/quiz"].amount == 6 * MODELS
    assert (same["answers/quiz_again"].amount, same["answers/quiz_again"].seconds_high) == (0, 0)
    more = _planned(_state(tmp_path / "more", both, quiz={"questions": 6}, quiz_again={"questions": 8}))
    assert more["answers/quiz_again"].amount == 2 * MODELS
    other = _planned(_state(tmp_path / "other", both, quiz={"questions": 6}, quiz_again={"questions": 6, "words": 9}))
    assert other["answers/quiz_again"].amount == 6 * MODELS
