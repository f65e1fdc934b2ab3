"""A budget that cannot hold is refused before the first request, and one whose replies are kept never."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from gateau_dagster.cli.validate import print_validation
from gateau_dagster.errors import GateauError
from gateau_dagster.features.evaluation.judging.replies import Replies
from gateau_dagster.features.synthesis import PASSAGES_TABLE, QUESTIONS_TABLE
from gateau_dagster.features.synthesis.config import SYNTHETIC_SAMPLES, GeneratorConfig
from gateau_dagster.features.synthesis.forecast import (
    SynthesisYield,
    check_generator,
    measured_yield,
    planned_synthesis,
    remember_yield,
)
from gateau_dagster.features.synthesis.passages import candidates
from gateau_dagster.features.synthesis.questions import later_requests
from gateau_dagster.features.synthesis.scripted_generator import ScriptedGenerator, serving
from gateau_dagster.features.synthesis.trial import print_synthesis
from gateau_dagster.pipeline.checks import checks_of
from gateau_dagster.pipeline.observed import state_of
from gateau_dagster.pipeline.project import load_project
from tests.assets.harness import pipeline_on
from tests.features.synthesis.test_pipeline import COUNT, OPEN, project, table
from tests.kit.project import change_config


@pytest.mark.parametrize("chunks", [1, 2, 8, 9, 64, 65, 600])
def test_the_later_requests_of_a_summary_are_its_groups_level_by_level(chunks: int) -> None:
    level, requests = [*range(chunks)], 0
    while len(level) > 1:
        level = [place for place in level if place % 8 == 0]
        requests += len(level)
        level = [*range(len(level))]
    assert later_requests({"kind": "prolong_summary", "passages": [*range(chunks)]}) == requests
    assert [later_requests({"kind": kind, "passages": [1, 2]}) for kind in ("self", "compare")] == [1, 0]


@pytest.mark.long
@pytest.mark.parametrize(
    "more", [{"kinds": {"self": 0.5, "count": 0.5}, "documents": 30}, {"preset": "prolong", "count": 20}]
)
def test_the_plan_counts_every_request_for_questions(tmp_path: Path, more: dict[str, Any]) -> None:
    with serving(ScriptedGenerator()) as server:
        file = project(tmp_path, server.base_url, **more)
        with pipeline_on(file) as pipeline:
            pipeline.refresh(PASSAGES_TABLE)
            state = pipeline.state()
            planned = planned_synthesis(state, state.plan())
            assert planned is not None and planned.unchosen == 0 and planned.questions.cost is not None
            pipeline.refresh(QUESTIONS_TABLE)
            assert {"self", "prolong_summary"} & {*table(pipeline.state(), QUESTIONS_TABLE)["kind"]}
    replies = Replies(state.store.files, "scripted", GeneratorConfig.replies_folder)
    assert replies.spent.requests == planned.questions.cost.usage.requests


def test_a_budget_that_is_spent_stops_nothing_that_is_kept(tmp_path: Path) -> None:
    with serving(ScriptedGenerator()) as server:
        kinds = {"self": 0.5, "two_passages": 0.5}
        file = project(tmp_path, server.base_url, kinds=kinds)
        with pipeline_on(file) as pipeline:
            pipeline.refresh(SYNTHETIC_SAMPLES)
        asked = len(server.prompts)
        project(tmp_path, server.base_url, kinds=kinds, generator={"budget": {"requests": asked}})
        shutil.rmtree(next(tmp_path.glob("**/synthetic/questions")))
        with pipeline_on(file) as pipeline:
            state = pipeline.state()
            planned = planned_synthesis(state, state.plan())
            assert planned is not None and planned.expected_answers.usage.requests == 0
            assert planned.questions.cost is not None
            assert planned.questions.cost.usage.requests == 0 < planned.questions.cost.kept
            check_generator(state, planned)
            pipeline.refresh(SYNTHETIC_SAMPLES)
        assert len(server.prompts) == asked


def test_second_answers_count_before_the_first_request(tmp_path: Path) -> None:
    with serving(ScriptedGenerator()) as server:
        budget = {"budget": {"requests": COUNT + 2}}
        file = project(tmp_path, server.base_url, kinds={"two_passages": 1.0}, generator=budget)
        state = state_of(config=load_project(file))
        for work in (lambda: check_generator(state, planned_synthesis(state, state.plan())), lambda: tried_once(file)):
            with pytest.raises(GateauError, match=r"synthesis\.generator\.budget.*the yield is not known"):
                work()
        with pytest.raises(GateauError, match=r"synthesis\.generator\.budget"):
            print_validation(load_project(file))
        with pipeline_on(file) as pipeline, pytest.raises(GateauError, match=r"synthesis\.generator\.budget"):
            pipeline.refresh(SYNTHETIC_SAMPLES)
        assert server.prompts == []


def tried_once(file: Path) -> None:
    print_synthesis(load_project(file))


def test_a_judge_that_compares_answers_needs_its_key(tmp_path: Path) -> None:
    file = project(tmp_path, "http://127.0.0.1:1/v1", checks={**OPEN, "agreement": "judge"})
    change_config(
        file, evaluation={"judge": {"base_url": "http://127.0.0.1:1/v1", "model": "j", "key": "NO_SUCH_KEY_HERE"}}
    )
    found = checks_of(state_of(config=load_project(file))).findings()
    assert any("NO_SUCH_KEY_HERE" in str(each) for each in found)


def test_a_measured_yield_stays_with_another_budget_and_not_with_other_checks(tmp_path: Path) -> None:
    found = SynthesisYield(candidates=10, reached=6, accepted=5)
    file = project(tmp_path, "http://127.0.0.1:1/v1")
    remember_yield(state_of(config=load_project(file)), found)
    way = {"budget": {"requests": 5}, "concurrency": 7, "timeout": 3.0}
    project(tmp_path, "http://127.0.0.1:2/v1", generator=way)
    assert measured_yield(state_of(config=load_project(file))) == found
    project(tmp_path, "http://127.0.0.1:1/v1", generator={"model": "other"})
    assert measured_yield(state_of(config=load_project(file))) is None
    project(tmp_path, "http://127.0.0.1:1/v1")
    change_config(file, scoring={"max_length": 600})
    assert measured_yield(state_of(config=load_project(file))) is None, "theta_B reads less"


def test_validate_leaves_out_passages_with_questions_of_benchmarks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[Any] = []
    marked: list[Any] = []

    def kept(documents: Any, options: Any, count: int, asked: Any = ()) -> Any:
        given.append(asked)
        return candidates(documents, options, count, asked)

    monkeypatch.setattr("gateau_dagster.features.synthesis.assets.asked_texts", lambda *_: marked)
    monkeypatch.setattr("gateau_dagster.features.synthesis.assets.candidates", kept)
    with serving(ScriptedGenerator()) as server:
        print_synthesis(load_project(project(tmp_path, server.base_url, documents=2, count=2)))
    assert given and given[0] is marked
