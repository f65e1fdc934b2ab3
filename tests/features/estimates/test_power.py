"""How small a difference of two models the benchmarks of an experiment can show."""

import math
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from rich.console import Console

from gateau_dagster import tables
from gateau_dagster.cli.plan import plan_record
from gateau_dagster.features.estimates.forecast import show_power
from gateau_dagster.features.estimates.power import Power, detectable, experiment_power
from gateau_dagster.features.evaluation.statistics.compare import Model, compare, total_of
from gateau_dagster.pipeline.observed import state_of
from gateau_dagster.pipeline.project import load_project
from gateau_dagster.pipeline.state import State
from gateau_dagster.storage import Stamp
from tests.features.evaluation.quiz import with_quiz
from tests.features.evaluation.ruler_files import write_ruler
from tests.kit.project import make_project


def _state(folder: Path, **options: Any) -> State:
    write_ruler(folder / "ruler")
    ruler = {"official": "ruler", "tasks": ["vt"], "lengths": [512], "samples": 16}
    asked = {"benchmarks": ["quiz", "ruler", "heldout"], "quiz": {"questions": 25}, "ruler": ruler}
    given: dict[str, Any] = {"selection": {"method": "length", "fraction": 0.5}, "evaluation": asked, **options}
    return state_of(config=load_project(make_project(folder, samples=24, shards=2, training=True, **given)))


def _write_scores(state: State, variant: str, values: np.ndarray) -> None:
    rows = {"question_id": [f"q{number}" for number in range(len(values))], "group": ["all"] * len(values)}
    table = pl.DataFrame(rows | {"value": values}, schema=tables.schema(tables.SCORES))
    state.store.write(table, "scores/quiz", variant, Stamp(fingerprint=variant))


def _powers(state: State) -> dict[str, Power]:
    with with_quiz():
        return {power.benchmark: power for power in experiment_power(state, state.whole_plan())}


def test_before_any_model_has_answered_a_quarter_of_the_questions_differs(tmp_path: Path) -> None:
    with with_quiz():
        found = _powers(_state(tmp_path, variants={}))
    ruler, quiz, heldout = (found[name] for name in ("ruler", "quiz", "heldout"))
    assert (ruler.questions, ruler.unit) == (16, "%") and ruler.difference == pytest.approx(2.8 * 50 / 4, rel=1e-4)
    assert quiz.questions == 25 and heldout.questions is None
    for power in (quiz, heldout):  # their values have other units
        assert power.difference is None and power.grounds == "not known before two models have answered"


def test_answers_of_the_store_say_how_far_models_differ(tmp_path: Path) -> None:
    with with_quiz():
        state = _state(tmp_path, variants={})
        rng = np.random.default_rng(0)
        for name in ("base", "random"):
            _write_scores(state, name, rng.normal(50, 10, 36))
        quiz = _powers(state)["quiz"]
    values = [state.store.read("scores/quiz", name)["value"].to_numpy() for name in ("base", "random")]
    assert quiz.difference == pytest.approx(2.8 * np.std(values[0] - values[1], ddof=1) / 6, rel=1e-4)
    assert quiz.questions == 36 and quiz.grounds == "the answers of 2 models of this store"


def test_what_another_seed_changes_is_part_of_it(tmp_path: Path) -> None:
    with with_quiz():
        state = _state(tmp_path, variants={"seeds": [0, 1, 2], "also": ["full"]})
        rng, shift = np.random.default_rng(0), {"length-s0": 8.0, "length-s1": -8.0}
        for name in ("base", "random-s0", *shift):
            _write_scores(state, name, rng.normal(50, 2, 36) + shift.get(name, 0.0))
        power = _powers(state)["quiz"]
    values = np.stack([state.store.read("scores/quiz", name)["value"].to_numpy() for name in shift])
    # The chance in single questions is no part of what the seeds change. Both models will have three seeds.
    of_seeds = 2 * (values.mean(axis=1).var(ddof=1) - (values[0] - values[1]).var(ddof=1) / 2 / 36) / 3
    assert power.seeds and power.difference is not None
    student = 2.447  # length, random and full will give six degrees of freedom
    assert power.difference == pytest.approx((student + 0.84) * math.sqrt(of_seeds), rel=0.01), "seeds decide here"
    assert power.grounds == "the answers of 4 models of this store, several seeds among them"


def test_it_belongs_to_an_experiment(tmp_path: Path) -> None:
    with with_quiz():
        state = _state(tmp_path)
        assert experiment_power(state, state.whole_plan()) == []
        assert plan_record(state, state.whole_plan())["power"] == []


def test_four_of_five_such_differences_are_told_apart() -> None:
    """Simulated answers are compared as the experiment compares them."""
    rng, questions, deviation = np.random.default_rng(1), 200, 30.0
    difference = detectable(questions, deviation)
    apart = 0
    for _ in range(200):
        values = rng.normal(50, 20, questions)
        other = values + difference + rng.normal(0, deviation, questions)
        models = [Model(name="one", values=values[None]), Model(name="two", values=other[None])]
        _, two = compare(models, total_of(["all"] * questions, by_group=False), reference="one", draws=300)
        assert two.difference is not None and two.difference.low is not None
        apart += two.difference.low > 0
    assert abs(apart / 200 - 0.8) < 3 * math.sqrt(0.8 * 0.2 / 200)


def test_it_is_shown_with_its_grounds() -> None:
    powers = [
        Power(benchmark="quiz", questions=1200, difference=4.04, unit="%", grounds="a guess"),
        Power(benchmark="losses", questions=None, difference=None, unit="nats", grounds="nothing"),
    ]
    out = Console(file=StringIO(), width=120)
    show_power(out, powers)
    show_power(out, [])
    assert isinstance(out.file, StringIO)
    lines = [line.split() for line in out.file.getvalue().strip().splitlines()]
    assert lines[1] == ["quiz", "1,200", "4.0", "points"] and lines[2] == ["losses", "unknown", "unknown"]
    assert lines[3] == ["quiz:", "a", "guess."] and lines[5][:3] == ["Such", "a", "difference"]
