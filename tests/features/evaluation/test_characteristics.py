"""What rating samples will cost, before their ranking is there and after."""

from pathlib import Path
from typing import Any

import polars as pl
import pytest

from gateau_dagster.features.evaluation.config import evaluation_of
from gateau_dagster.features.evaluation.forecast import judging_record
from gateau_dagster.features.evaluation.judge_requests import rated_samples
from gateau_dagster.features.evaluation.judging.asking import BudgetError
from gateau_dagster.features.evaluation.judging.replies import Replies, Reply
from gateau_dagster.features.evaluation.planned_judging import check_servers, planned_judging
from gateau_dagster.pipeline.observed import state_of
from gateau_dagster.pipeline.project import load_project
from gateau_dagster.pipeline.state import State
from gateau_dagster.storage import Stamp
from tests.kit.project import make_project

JUDGE = {"base_url": "http://127.0.0.1:9/v1", "model": "m", "key": None, "prices": {"prompt": 1, "reply": 2}}


def _state(folder: Path, *, samples: int = 24, **judge: Any) -> State:
    evaluation = {"judge": {**JUDGE, "characteristics": 3, **judge}}
    selection = {"method": "length", "fraction": 0.5}
    return state_of(
        config=load_project(
            make_project(folder, samples=samples, shards=2, training=False, evaluation=evaluation, selection=selection)
        )
    )


def _rank(state: State) -> None:
    """What makes the ranking, without a run of it."""
    accepted = state.index.accepted
    for shard in state.shards:
        ids = accepted.filter(pl.col("shard") == int(shard))["sample_id"].to_list()
        texts = [f"{sample_id} {'word ' * 30}" for sample_id in ids]
        raw = {"sample_id": ids, **dict.fromkeys(("source", "context", "instruction", "response", "digest"), texts)}
        state.store.write(pl.DataFrame(raw), "raw_long_sft", shard, Stamp(fingerprint="raw"))
        scores = pl.DataFrame({"sample_id": ids, "score": [float(len(ids) - n) for n in range(len(ids))]})
        state.store.write(scores, "method_scores/length", shard, Stamp(fingerprint="scores"))


def test_before_the_ranking_is_there_samples_are_of_middling_length(tmp_path: Path) -> None:
    state = _state(tmp_path)
    (planned,) = planned_judging(state, state.whole_plan())
    assert (planned.asset, planned.cost and planned.cost.usage.requests) == ("characteristics", 5 * 2 * 3)
    assert planned.cost is not None and planned.cost.money is not None and planned.cost.money > 0
    # A sample is read whole by two of the five, and in part by the others.
    letters = state.index.accepted["characters"].mean()
    assert isinstance(letters, float) and planned.cost.usage.prompt_tokens > 6 * 2 * letters / 20
    record = judging_record(state, state.whole_plan())
    assert record["benchmarks"]["characteristics"]["requests"] == 30 and record["refused"] == ""
    few = _state(tmp_path / "few", samples=4, characteristics=100)
    (planned,) = planned_judging(few, few.whole_plan())
    assert planned.cost is not None and planned.cost.usage.requests == 5 * 4, "each half at most"


def test_with_a_ranking_the_samples_are_those_that_it_names_and_kept_replies_cost_nothing(tmp_path: Path) -> None:
    state = _state(tmp_path)
    _rank(state)
    settings = evaluation_of(state.config).judge
    assert settings is not None
    parts, wanted = rated_samples(state, settings)
    assert len(parts) == 6 and len(wanted) == 30
    replies = Replies(state.store.files, "m")
    for each in wanted[:10]:
        replies.keep(each.asked, Reply(text="[[3]]", prompt_tokens=100, reply_tokens=7, seconds=0.1))
    (planned,) = planned_judging(state, state.whole_plan())
    assert planned.cost is not None
    assert (planned.cost.kept, planned.cost.usage.requests, planned.cost.usage.reply_tokens) == (10, 20, 140)


def test_a_run_that_would_pass_the_budget_is_refused_at_its_start(tmp_path: Path) -> None:
    state = _state(tmp_path, budget={"requests": 29})
    plan = state.whole_plan()
    with pytest.raises(BudgetError, match=r"evaluation\.judge\.budget: judging needs about 30 requests"):
        check_servers(state, plan, planned_judging(state, plan))
    assert judging_record(state, plan)["refused"].startswith("evaluation.judge.budget: ")
