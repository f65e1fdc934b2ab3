"""From questions to the experiment in one run: answers, a judge's ratings, pairs, characteristics, scores, costs."""

from pathlib import Path

import pytest

from gateau_dagster.features.evaluation.planned_judging import planned_judging
from gateau_dagster.storage.documents import read_document
from tests.assets.harness import Pipeline, pipeline_on
from tests.features.evaluation.judges import judge_server, said
from tests.features.evaluation.mt_bench_files import write_files
from tests.kit.fake_server import leaks, parts_in
from tests.kit.project import change_config, make_project

KEY = "Jq7-Zw0Xk93vLmTb5RyH2cQ8"


def planned(pipeline: Pipeline) -> tuple[int, int]:
    """Requests that are expected, and the most."""
    state = pipeline.state()
    plan = state.plan()
    (found,) = [each for each in planned_judging(state, plan) if each.asset == "mt_bench"]
    assert found.cost is not None and found.most is not None
    return found.cost.usage.requests, found.most.usage.requests


@pytest.mark.long
def test_one_run_answers_judges_and_compares_and_the_next_does_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OUR_JUDGE", KEY)
    with judge_server() as server:
        server.play = lambda message, before: said(f"{KEY} or {KEY[3:]}: [[5]]")
        judge = {"base_url": server.address, "model": "judge", "key": "OUR_JUDGE", "max_retries": 0}
        judge |= {"prices": {"prompt": 1.0, "reply": 1.0}, "pairs": [["base", "checkpoint"]], "characteristics": 1}
        asked = {**write_files(tmp_path).options.model_dump(), "max_new_tokens": 4}
        file = make_project(
            tmp_path, samples=12, shards=2, training=True,
            evaluation={"benchmarks": ["heldout", "mt_bench"], "judge": judge, "mt_bench": asked},
        )  # fmt: skip
        change_config(file, training={"max_steps": 2, "epochs": 1.0})
        with pipeline_on(file) as pipeline:
            result = pipeline.refresh()
            state = pipeline.state()
            assert len(result.run_ids) == 2, "what does not depend on a variant, and what does"
            rows = state.store.read("experiment")
            assert set(rows["variant"]) == {"base", "checkpoint"} and set(rows["benchmark"]) == {"mt_bench"}
            assert rows["value"].is_between(10, 100).all() and (rows["judge_cost"] > 0).all()
            for asset in ("pairwise/mt_bench", "characteristics"):
                assert state.store.read(asset).height > 0
            page = read_document(state.store, "report.html")
            for words in (
                "MT-Bench",
                "By category",
                "By turn",
                "Best and worst samples by a judge",
                "Answers set against each other",
            ):
                assert words in page, words
            paid = len(server.requests)
            assert not state.plan() and pipeline.refresh().run_ids == [] and len(server.requests) == paid
            given = (tmp_path / "long.jsonl").read_text()
            (tmp_path / "long.jsonl").write_text(given.replace('"response": "', '"response": "now ', 1))
            assert planned(pipeline) == (0, 12), "answers that may come out as before are not paid again"
            (tmp_path / "long.jsonl").write_text(given)
            change_config(file, training={"learning_rate": 0.1})
            assert planned(pipeline) == (12, 12), "another model's answers are others"
            change_config(file, training={"learning_rate": 2.0e-5})
            change_config(file, evaluation={"benchmarks": ["heldout", "mt_bench"], "judge": judge | {"repeats": 2},
                                            "mt_bench": asked})  # fmt: skip
            answered = pipeline.state().stamp("answers/mt_bench", "base")
            pipeline.refresh()
            assert pipeline.state().stamp("answers/mt_bench", "base") == answered, "another judging asks no model"
            assert len(server.requests) > paid
    assert leaks(tmp_path, KEY) == [] and not parts_in("".join(capfd.readouterr()).encode(), KEY)
