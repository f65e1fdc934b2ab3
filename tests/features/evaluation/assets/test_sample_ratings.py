"""Every sample rated by a judge over HTTP, for the method judge: once, again for what changed, within the budget."""

from pathlib import Path
from typing import Any

import pytest

from gateau_dagster.assets.runs.checks import checked
from gateau_dagster.errors import GateauError
from gateau_dagster.features.evaluation.planned_judging import planned_judging
from gateau_dagster.pipeline.asset import FULL_COVERAGE
from gateau_dagster.pipeline.losses import losses
from tests.assets.harness import pipeline_on
from tests.features.evaluation.judges import JudgeServer, judge_server, said
from tests.kit.fake_server import Act, refuse
from tests.kit.project import change_config, make_project, sample, write_samples

COUNT = 6
UNREADABLE = "no rating in the reply"


def play(message: str, before: int) -> Act:
    """Rate by the sample's number; the last sample gets no rating."""
    del before
    number = next(each for each in range(COUNT, -1, -1) if each == 0 or f"fact {each} " in message)
    return said("no idea" if number == COUNT - 1 else f"Rating: [[{1 + number}]]")


def texts() -> list[dict[str, Any]]:
    return [{**sample(number), "instruction": f"fact {number} ?"} for number in range(COUNT)]


def project(folder: Path, server: JudgeServer, **judge: Any) -> Path:
    given = {"base_url": server.address, "model": "judge", "key": None, "max_retries": 0, **judge}
    selection = {
        "method": "judge",
        "options": {"judge": {"characteristics": ["necessity", "complexity"]}},
        "fraction": 0.34,
    }
    file = make_project(folder, samples=COUNT, shards=2, evaluation={"judge": given}, selection=selection)
    write_samples(file.parent / "long.jsonl", texts())
    return file


def test_samples_are_rated_once_and_what_changed_again(tmp_path: Path) -> None:
    with judge_server(play) as server:
        file = project(tmp_path, server)
        with pipeline_on(file) as pipeline:
            state = pipeline.state()
            (planned,) = [each for each in planned_judging(state, state.plan()) if each.asset == "sample_ratings"]
            assert planned.cost is not None and planned.cost.usage.requests == 2 * COUNT
            pipeline.refresh("selected_subset")
            assert len(server.requests) == 2 * COUNT
            state = pipeline.state()
            chosen = state.store.read("selected_subset")["sample_id"].to_list()
            assert sorted(chosen) == ["s00003", "s00004"], "the last one has no rating"
            ratings = state.store.read_all("sample_ratings", state.shards, ["sample_id", "characteristic", "rating"])
            found = {row[:2]: row[2] for row in ratings.iter_rows()}
            assert found == {
                (f"s{number:05d}", name): 1.0 + number
                for number in range(COUNT - 1)
                for name in ("complexity", "necessity")
            }
            unrated, reason = state.read_rejected("sample_ratings").row(0)
            assert unrated == f"s{COUNT - 1:05d}"
            unread = f"{UNREADABLE} that ends with 'no idea'"
            assert reason == f"necessity: {unread}; complexity: {unread}"
            (lost,) = losses(state, {"sample_ratings", "method_scores/judge"})
            assert lost.notable and lost.sentence.startswith(f"1 of {COUNT} samples rejected")
            assert pipeline.refresh("selected_subset").run_ids == []
            changed = texts()
            changed[0]["response"] = "another answer ."
            write_samples(file.parent / "long.jsonl", changed)
            pipeline.refresh("selected_subset")
            assert len(server.requests) == 2 * COUNT + 1, "complexity does not look at the response"


@pytest.mark.long
def test_above_the_budget_nothing_is_asked(tmp_path: Path) -> None:
    with judge_server(play) as server:
        file = project(tmp_path, server, budget={"requests": 2 * COUNT - 1})
        with pipeline_on(file) as pipeline, pytest.raises(GateauError, match="the budget is 11 requests"):
            pipeline.refresh("selected_subset")
        assert server.requests == []
        change_config(file, evaluation={"judge": {"base_url": server.address, "model": "judge", "key": None}})
        with pipeline_on(file) as pipeline:
            pipeline.refresh("selected_subset")
        assert len(server.requests) == 2 * COUNT


def test_a_judge_that_rates_nothing_is_said_with_what_it_replied(tmp_path: Path) -> None:
    with judge_server(lambda message, before: said("I'd rather not.")) as server:
        file = project(tmp_path, server)
        with pipeline_on(file) as pipeline, pytest.raises(GateauError) as raised:
            pipeline.refresh("selected_subset")
    assert f"{COUNT} of {COUNT} samples rejected" in str(raised.value)
    assert f"necessity: {UNREADABLE}" in str(raised.value)


@pytest.mark.long
def test_a_sample_that_gets_no_reply_is_rejected_and_asked_again_with_more_patience(tmp_path: Path) -> None:
    def one_fails(message: str, before: int) -> Act:
        return refuse(503, "too busy") if "fact 1 " in message and "demanding" in message else play(message, before)

    with judge_server(one_fails) as server:
        file = project(tmp_path, server)
        with pipeline_on(file) as pipeline:
            pipeline.refresh("selected_subset")
            state = pipeline.state()
            reasons = dict(state.read_rejected("sample_ratings").iter_rows())
            assert reasons["s00001"] == "complexity: 503: too busy"
            assert "s00001" not in state.read("sample_ratings")["sample_id"]
            assert checked(state, state.asset("sample_ratings"), FULL_COVERAGE).passed
            assert state.plan().of("selected_subset") is None, "it would be a reject again"
            server.play, asked = play, len(server.requests)
            given = {"base_url": server.address, "model": "judge", "key": None, "max_retries": 1}
            change_config(file, evaluation={"judge": given})
            work = pipeline.state().plan().of("sample_ratings")
            assert work is not None
            (reason,) = work.reasons.values()
            assert "had no reply" in reason
            pipeline.refresh("selected_subset")
            assert len(server.requests) == asked + 1
            scores = pipeline.state().read("method_scores/judge")
            assert dict(scores.iter_rows())["s00001"] == 2.0
            assert pipeline.state().plan().of("selected_subset") is None
