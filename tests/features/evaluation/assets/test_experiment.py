"""The experiment's asset and its gate, on a store whose scores were written by hand."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import polars as pl
import pytest

from gateau_dagster import tables
from gateau_dagster.assets.runs.checks import checked
from gateau_dagster.config.base import Section
from gateau_dagster.data.sample import Reject
from gateau_dagster.execution.shard_tables import rejected_frame
from gateau_dagster.features.evaluation import GATE, benchmarks
from gateau_dagster.features.evaluation.assets.experiment import judged_costs, variant_cost
from gateau_dagster.features.evaluation.benchmarks.mt_bench import MtBench, MtBenchOptions
from gateau_dagster.features.evaluation.experiment_values import experiment_inputs, scores_by_turn
from gateau_dagster.features.evaluation.registry import all_benchmarks
from gateau_dagster.features.evaluation.statistics.experiment import Cost
from gateau_dagster.pipeline.observed import state_of
from gateau_dagster.pipeline.project import load_project
from gateau_dagster.storage import Stamp
from tests.assets.harness import Pipeline, in_place, pipeline_on
from tests.features.evaluation.experiment_builders import chosen, scores
from tests.features.evaluation.judges import Judged
from tests.kit.project import change_config, make_project

EXAM = """
from tests.features.evaluation.experiment_builders import Unmeasured


class Exam(Unmeasured):
    name = "exam"
    title = "An exam"
"""
VARIANTS = {"methods": ["length"], "fractions": [0.25], "seeds": [0, 1], "also": ["full"]}
VALUES = {"base": 40, "checkpoint": 55, "length-0.25-s0": 60, "length-0.25-s1": 61, "full-s0": 52, "full-s1": 52}


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pipeline]:
    """Six variants, whose questions have values and whose trainings are on record; nothing else was made."""
    folder = tmp_path_factory.mktemp("experiment")
    (folder / "benchmarks").mkdir()
    (folder / "benchmarks" / "exam.py").write_text(EXAM)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(benchmarks, "__path__", [*benchmarks.__path__, str(folder / "benchmarks")])
        all_benchmarks.cache_clear()
        file = make_project(
            folder / "project", samples=4, shards=1, training=True, variants=VARIANTS,
            evaluation={"benchmarks": ["exam"], "gate": {"benchmark": "exam", "margin": 2.0}},
        )  # fmt: skip
        with pipeline_on(file) as pipeline:
            _fill(pipeline)
            yield pipeline
    all_benchmarks.cache_clear()


def _fill(project: Pipeline) -> None:
    state = project.state()
    stamp = Stamp(fingerprint="f", content="c")
    for place, (name, value) in enumerate(VALUES.items()):
        trained = {"model": "m", "samples": 10, "tokens": 500, "seconds": 1800.0 * place}
        row = trained if place else {"model": "m", "samples": None, "tokens": None, "seconds": None}
        models = pl.DataFrame([row], schema=tables.schema(tables.VARIANT_CHECKPOINT))
        state.store.write(models, "variant/checkpoint", name, stamp)
        state.store.files.write("variant/models/f/gateau.json", stamp.to_json().encode())
        values = [value + 10 * (question % 3) + 0.5 * ((question + place) % 2) for question in range(30)]
        state.store.write(scores(values, ("a", "b")), "scores/exam", name, stamp)
    measured = Stamp(fingerprint="f", effort={"seconds": 7200.0})
    state.store.write(pl.DataFrame({"sample_id": ["s"], "score": [1.0]}), "method_scores/length", "0", measured)


def _make(project: Pipeline) -> Any:
    (event,) = project.make("experiment").get_asset_materialization_events()
    return event.materialization.metadata


def _rows(project: Pipeline) -> dict[str, dict]:
    return {row["variant"]: row for row in project.state().store.read("experiment").iter_rows(named=True)}


def test_the_step_writes_a_row_a_model_with_what_it_took(project: Pipeline) -> None:
    metadata = _make(project)
    rows = _rows(project)
    assert [*rows] == ["base", "checkpoint", "length-0.25", "full"]
    assert rows["base"]["difference"] is None and rows["base"]["samples"] is None
    chosen = rows["length-0.25"]
    assert chosen["seeds"] == 2 and chosen["best"] and not rows["full"]["best"]
    assert chosen["difference"] == pytest.approx(20.5, abs=0.3)
    assert chosen["training_hours"] == pytest.approx((2 + 3) / 2 / 2)
    assert chosen["scoring_hours"] == 2.0 and rows["full"]["scoring_hours"] == 0.0
    assert chosen["hours_per_point"] == pytest.approx((2.0 + 1.25) / chosen["difference"])
    assert any(name.endswith("_values") for name in metadata)
    assert in_place(metadata["exam"]) and "exam" in str(metadata["exam"].value)

    state = project.state()
    assert experiment_inputs(state, state.store.read("experiment")).reference == "base"
    assert "up_to_date" in _make(project)
    variants = state.config.variant_set
    assert variant_cost(state, variants["length-0.25-s1"]).scoring_hours == 2.0, "what its choice read"
    assert variant_cost(state, variants["base"]).scoring_hours is None


@pytest.mark.parametrize(("low", "high", "severity"), [(1.0, 3.0, None), (-4.0, 1.0, "WARN"), (-5.0, -3.0, "ERROR")])
def test_a_sure_loss_is_an_error_and_one_not_excluded_a_warning(
    project: Pipeline, low: float, high: float, severity: str | None
) -> None:
    state = project.state()
    ends = {"value": 50.0, "difference": (low + high) / 2, "difference_low": low, "difference_high": high}
    row = {"benchmark": "exam", **ends, "best": True, "probability_best": 1.0}
    rows = [{"variant": name, **row} for name in ("checkpoint", "length-0.25", "full")]
    table = pl.DataFrame(rows, schema=tables.schema(tables.EXPERIMENT))
    state.store.write(table, "experiment", None, Stamp(fingerprint="f"))
    found = checked(state, state.asset("experiment"), GATE)
    assert found.passed is (severity is None)
    assert severity is None or found.severity.value == severity
    assert "full" in found.metadata["models"].value  # type: ignore[operator]
    state.store.write(table.filter(pl.col("variant") != "length-0.25"), "experiment", None, Stamp(fingerprint="f"))
    assert not checked(state, state.asset("experiment"), GATE).passed, "one model was not measured"


def test_without_a_gate_there_is_no_such_check(project: Pipeline) -> None:
    asset = project.state().asset("experiment")
    assert GATE in asset.checks
    change_config(project.file, evaluation={"gate": None})
    assert GATE not in project.state().asset("experiment").checks


def test_where_nothing_can_be_compared_a_reason_is_said(project: Pipeline) -> None:
    reason = "2 of its 2 turns have no judgment with a score; a reply ends with 'Fine [2]. 8/10'"
    rejected = rejected_frame([Reject(sample_id="q0000", reason=reason)])
    state = project.state()
    for name in VALUES:
        state.store.write(scores([]).clear(), "scores/exam", name, Stamp(fingerprint="none"), rejected)
    try:
        with pytest.raises(dg.Failure) as failed:
            _make(project)
    finally:
        _fill(project)
    said = str(failed.value.description)
    assert said.endswith(f"scores/exam say why, such as: {reason}.") and said.count("experiment") == 0


def test_judging_is_priced_by_variant(tmp_path: Path) -> None:
    judge = {"base_url": "http://localhost:1/v1", "model": "m", "prices": {"prompt": 2.0, "reply": 10.0}}
    state = state_of(config=load_project(make_project(tmp_path, samples=4, shards=1, evaluation={"judge": judge})))
    said = dict.fromkeys(tables.schema(tables.JUDGMENTS), None) | {"requests": 1}
    for name, tokens in (("a", 500_000), ("b", 0)):
        rows = [said | {"prompt_tokens": tokens, "reply_tokens": 100_000} for _ in range(2)]
        found = pl.DataFrame(rows, schema=tables.schema(tables.JUDGMENTS))
        state.store.write(found, "judgments/exam", name, Stamp(fingerprint="f"))
    rated = type("Rated", (Judged,), {"name": "exam"})(state.config, Section())
    costs = {"a": Cost(samples=3), "b": Cost()}
    found = judged_costs(state, rated, costs)
    assert found == {"a": Cost(samples=3, judge_cost=4.0), "b": Cost(judge_cost=2.0)}
    assert judged_costs(state, chosen(name="exam"), costs) == costs


def test_a_turn_of_which_one_model_has_no_rating_is_there_for_the_others(tmp_path: Path) -> None:
    state = state_of(config=load_project(make_project(tmp_path, samples=4, shards=1, training=True)))
    said = dict.fromkeys(tables.schema(tables.JUDGMENTS), None) | {"question_id": "q0000"}
    for name, ratings in (("base", (6.0, None)), ("checkpoint", (5.0, 7.0))):
        rows = [said | {"turn": turn, "score": score} for turn, score in enumerate(ratings)]
        judged = pl.DataFrame(rows, schema=tables.schema(tables.JUDGMENTS))
        state.store.write(judged, "judgments/mt_bench", name, Stamp(fingerprint="f"))
        values = scores([60.0]) if name == "checkpoint" else scores([]).clear()
        state.store.write(values, "scores/mt_bench", name, Stamp(fingerprint="f"))
    found = scores_by_turn(state, MtBench(state.config, MtBenchOptions()))
    assert [*found] == [0, 1] and all(turn["base"].is_empty() for turn in found.values())
    assert [turn["checkpoint"]["value"].to_list() for turn in found.values()] == [[50.0], [70.0]]
