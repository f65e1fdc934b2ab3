"""Trainings and answers of a plan: amounts by the data, time by what the store holds, else by the device."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from gateau_dagster import tables
from gateau_dagster.features.estimates.amounts import _size, planned_amounts
from gateau_dagster.features.estimates.estimator import Estimator
from gateau_dagster.features.evaluation.benchmark import Generation, Question
from gateau_dagster.features.training_planner.training_memory import planned_memory
from gateau_dagster.models import devices
from gateau_dagster.pipeline.observed import state_of
from gateau_dagster.pipeline.project import load_project
from gateau_dagster.pipeline.state import State
from gateau_dagster.pipeline.work_forecast import WorkForecast
from gateau_dagster.storage import Stamp
from tests.assets.harness import pipeline_on
from tests.features.evaluation.quiz import with_quiz
from tests.features.evaluation.ruler_files import write_ruler
from tests.kit.project import change_config, make_project

VARIANTS = {"methods": ["length"], "fractions": [0.25, 0.5], "also": ["full"]}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_ruler(tmp_path / "ruler")
    return tmp_path


def _state(folder: Path, **training: Any) -> State:
    evaluation = {"benchmarks": ["ruler"], "ruler": {"official": "ruler", "tasks": ["vt"], "lengths": [512]}}
    options: dict[str, Any] = {"selection": {"method": "length", "fraction": 0.5}, "variants": VARIANTS}
    file = make_project(folder, samples=24, shards=2, training=True, evaluation=evaluation, **options)
    change_config(file, training={"max_steps": None, "epochs": 2, **training})
    return state_of(config=load_project(file))


def _trainings(state: State) -> dict[str, WorkForecast]:
    return {each.asset: each for each in planned_amounts(state, state.whole_plan(), Estimator(state))}


def test_tokens_grow_with_what_is_chosen_and_read_how_often(folder: Path) -> None:
    found = _trainings(_state(folder))
    whole = Estimator(_state(folder)).model("long").rates
    assert whole.samples > 0
    single, variants = found["checkpoint"], found["variant/checkpoint"]
    assert (single.models, variants.models) == (1, 3)
    assert single.amount is not None and single.low is not None and single.high is not None
    assert variants.amount == pytest.approx(single.amount * (0.25 + 0.5 + 1) / 0.5, rel=0.01)
    assert single.high == pytest.approx(6.25 * single.low)
    assert _trainings(_state(folder, epochs=4))["checkpoint"].amount == pytest.approx(2 * single.amount, rel=0.01)
    steps = _trainings(_state(folder, max_steps=6, batching="packed"))["checkpoint"]
    assert steps.amount == 6 * 2 * 512


def test_tokens_are_those_of_a_mix_that_is_up_to_date(tmp_path: Path) -> None:
    file = make_project(tmp_path, samples=12, shards=1, training=True, selection={"method": "length", "fraction": 0.5})
    change_config(file, training={"max_steps": None, "epochs": 2}, evaluation={"enabled": False})
    with pipeline_on(file) as pipeline:
        pipeline.refresh(until="training_mix")
        state = pipeline.state()
    lengths = [len(ids) for ids in state.read("training_mix")["input_ids"]]
    assert _trainings(state)["checkpoint"].amount == 2 * sum(lengths)
    (memory,) = planned_memory(state, state.whole_plan())
    assert memory.tokens == max(lengths)
    change_config(file, training={"max_steps": 3})
    state = state_of(config=load_project(file))
    assert _trainings(state)["checkpoint"].amount == round(3 * 2 * sum(lengths) / len(lengths))


def test_trainings_of_the_store_say_how_long_others_take(folder: Path) -> None:
    state = _state(folder)
    row = {"model": "store:x", "samples": 6, "tokens": 1000, "seconds": 10.0}
    made = pl.DataFrame([row], schema=tables.schema(tables.VARIANT_CHECKPOINT))
    state.store.write(made, "variant/checkpoint", "full", Stamp(fingerprint="x"))
    found = _trainings(state)["checkpoint"]
    assert found.amount is not None and found.grounds == "1 training of this store"
    assert (found.low, found.high) == pytest.approx((found.amount / 200, found.amount / 50), rel=1e-3)


MODELS = 5  # with base and checkpoint
RULER = {"official": "ruler", "tasks": ["vt"], "lengths": [512], "samples": 7}


@pytest.fixture(autouse=True)
def _quiz(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(devices, "matrix_product_speed", lambda *_: 1e9)
    with with_quiz():
        yield


def _asking(folder: Path, benchmarks: list[str], **evaluation: Any) -> State:
    write_ruler(folder / "ruler")
    options: dict[str, Any] = {"selection": {"method": "length", "fraction": 0.5}, "variants": VARIANTS}
    asked = {"benchmarks": benchmarks, **evaluation}
    return state_of(
        config=load_project(make_project(folder, samples=24, shards=2, training=True, evaluation=asked, **options))
    )


def _planned(state: State) -> dict[str, WorkForecast]:
    return {each.asset: each for each in planned_amounts(state, state.whole_plan(), Estimator(state))}


def _range(planned: WorkForecast) -> tuple[float, float]:
    assert planned.low is not None and planned.high is not None
    return planned.low, planned.high


def test_before_a_model_has_answered_the_device_says_how_long_it_takes(tmp_path: Path) -> None:
    found = _planned(_asking(tmp_path, ["quiz", "ruler"], quiz={"questions": 6}, ruler=RULER))
    quiz, ruler = found["answers/quiz"], found["answers/ruler"]
    assert (quiz.models, quiz.amount, ruler.amount) == (MODELS, 6 * MODELS, 7 * MODELS)
    assert quiz.grounds.startswith("the speed of one matrix product on this device")
    low, high = _range(quiz)
    assert 0 < 6 * low < high
    longer = _planned(_asking(tmp_path / "longer", ["quiz"], quiz={"questions": 6, "words": 400}))["answers/quiz"]
    assert _range(longer)[1] > 10 * high
    twice = _planned(_asking(tmp_path / "twice", ["quiz"], quiz={"questions": 12}))["answers/quiz"]
    assert _range(twice)[1] < 2.1 * high, "more of them are answered side by side"


def test_given_messages_are_read_with_every_turn() -> None:
    generation, earlier = Generation(max_new_tokens=5), (("user", "x" * 36), ("assistant", "yyyy"))
    one = Question(question_id="q", group="g", turns=("abcd", "efgh"), generation=generation, earlier=earlier)
    assert _size(one, letters=4, limit=100) == ((10 + 1) + (10 + 1 + 5 + 1), 10)


def test_a_server_s_time_is_not_known_before(tmp_path: Path) -> None:
    engine = {"base_url": "http://127.0.0.1:9/v1", "model": "m"}
    found = _planned(_asking(tmp_path, ["quiz"], quiz={"questions": 6}, engine=engine))["answers/quiz"]
    assert (found.amount, found.low, found.high) == (6 * MODELS, None, None)
    assert found.grounds == "not known before one model has answered"


def test_answers_take_what_they_took_another_model(tmp_path: Path) -> None:
    state = _asking(tmp_path, ["ruler"], ruler=RULER)
    rows = [(f"q{number}", 0, "", "", "", 1, 0, 1, "stop", 3.0) for number in range(4)]
    given = pl.DataFrame(rows, schema=tables.schema(tables.ANSWERS), orient="row")
    for name in ("base", "full"):
        state.store.write(given, "answers/ruler", name, Stamp(fingerprint=name))
    known = _planned(state)["answers/ruler"]
    assert (known.amount, known.low, known.high) == (20, 40.0, 90.0)
    assert known.grounds == "the answers of this store"


def test_what_another_benchmark_asks_first_takes_nothing(tmp_path: Path) -> None:
    both = ["quiz", "quiz_again"]
    same = _planned(_asking(tmp_path, both, quiz={"questions": 6}, quiz_again={"questions": 6}))
    assert same["answers/quiz"].amount == 6 * MODELS
    assert (same["answers/quiz_again"].amount, same["answers/quiz_again"].high) == (0, 0)
    more = _planned(_asking(tmp_path / "more", both, quiz={"questions": 6}, quiz_again={"questions": 8}))
    assert more["answers/quiz_again"].amount == 2 * MODELS
    other = _planned(_asking(tmp_path / "other", both, quiz={"questions": 6}, quiz_again={"questions": 6, "words": 9}))
    assert other["answers/quiz_again"].amount == 6 * MODELS
