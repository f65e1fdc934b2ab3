"""Estimates of the tables that methods bring along: what the plan says before a run, beside what a run charges."""

from pathlib import Path
from typing import Any

import polars as pl
import pytest
import torch

from gateau_dagster.estimate import scored_model
from gateau_dagster.estimate.calibration import Speed
from gateau_dagster.estimate.estimator import Estimator
from gateau_dagster.execution.shard_work import samples_of
from gateau_dagster.methods.registry import sample_tables
from gateau_dagster.models.encoders import load_for_task
from gateau_dagster.models.flops import Work
from gateau_dagster.pipeline.project import load_project
from gateau_dagster.pipeline.state import State
from gateau_dagster.scoring.sample_table import Running
from tests.project import make_project, sample
from tests.tiny_models import save_encoder

_SPEED = Speed(overhead=0.5, linear=1e-9, attention=2e-9, head=3e-9, segments=4e-9, rows=5e-9, longest=64, layers=1)
SELECTION = {
    "compare": ["ladm", "delta_perplexity", "ifd"],
    "options": {
        "ladm": {"span_length": 8, "first_scored": 6},
        "delta_perplexity": {"segment_length": 8, "window": 64, "pairs": 12},
    },
    "segment_lengths": [24],
    "preset": "paper",
}


def state_on(folder: Path, **sections: Any) -> State:
    return State(config=load_project(make_project(folder, samples=12, shards=2, **sections)))


def actual(state: State, asset: str) -> Work:
    """What a table's function charges for all samples of the project."""
    table, config = sample_tables(state.config)[asset], state.config
    texts = [{"sample_id": one.pop("id"), **one} for one in map(sample, range(12))]
    model = config.models[table.model]
    loaded = load_for_task(model, dtype="float32", device="cpu", folder=config.folder)
    running = Running(max_length=config.scoring.max_length, scoring=config.scoring, work=Work(), visible_tokens=64)
    assert len(list(table.score(loaded, samples_of(pl.DataFrame(texts)), running))) == 12
    return running.work


def test_the_plan_is_near_what_the_tables_take(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the lengths of texts alone: within a tenth, though a sample's response is taken for an average one."""
    monkeypatch.setattr(scored_model.ScoredModel, "speed", _SPEED)
    state = state_on(tmp_path, selection=SELECTION)
    assets = ["span_attention/long", "segment_pairs/long", "response_alone/long", "cam_at/24"]
    assert [*sample_tables(state.config)] == assets
    found = Estimator(state).assets(dict.fromkeys(assets, state.shards))
    for asset in assets:
        work = actual(state, asset)
        assert found[asset].samples == 12
        assert found[asset].tokens == pytest.approx(work.tokens, rel=0.1), asset
        assert found[asset].flops == pytest.approx(work.flops, rel=0.1), asset


def test_time_is_that_of_the_kinds_of_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Packed prompts at the rate of segments, lone ones with their overhead, rows at theirs."""
    monkeypatch.setattr(scored_model.ScoredModel, "speed", _SPEED)
    state = state_on(tmp_path, selection=SELECTION)
    estimator = Estimator(state)
    tokenising = state.index.accepted.select("characters", "tail_characters").sum().row(0)
    for asset, texts in (("response_alone/long", tokenising[1]), ("span_attention/long", tokenising[0])):
        own = estimator.model(asset)
        effort = estimator.tables[asset].effort
        assert own.shape is not None and effort is not None
        planned = effort(own.sample_tokens(state.index.accepted))
        (one,) = planned.passes
        seconds = texts * own.rates.seconds / torch.get_num_threads()
        linear, attention = one.linear(own.shape).sum(), one.attention(own.shape).sum()
        if one.packed:
            seconds += (linear + attention) * 4e-9 + one.output(own.shape).sum() * 3e-9
        else:
            seconds += 0.5 * one.count.sum() + linear * 1e-9 + attention * 2e-9
            seconds += sum(rows.flops(own.shape).sum() * 5e-9 for rows in planned.rows)
        found = estimator.assets({asset: state.shards})[asset]
        assert found.seconds == pytest.approx(seconds, rel=1e-9)
    slow = Speed(**{**vars(_SPEED), "segments": 0.0})
    monkeypatch.setattr(scored_model.ScoredModel, "speed", slow)
    found = Estimator(state).assets({"response_alone/long": state.shards})["response_alone/long"]
    assert found.seconds is not None and found.seconds > 0.5 * 12, "a pass each where packed ones were not timed"


def test_models_that_read_texts_as_a_whole_have_no_time(tmp_path: Path) -> None:
    save_encoder(tmp_path / "enc", "bert", "embedding")
    models = {"enc": {"path": "enc", "task": "embedding"}}
    state = state_on(tmp_path, models=models, selection={"rule": "diverse", "encoder": "enc"})
    estimator = Estimator(state)
    found = estimator.assets({"embedding/enc": state.shards})["embedding/enc"]
    work = actual(state, "embedding/enc")
    assert found.tokens == pytest.approx(work.tokens, rel=0.1)
    assert found.flops == pytest.approx(work.flops, rel=0.1)
    assert found.seconds is None
    assert estimator.model("embedding/enc").unknown == "only models that generate text are timed"
    for file in (tmp_path / "enc").glob("*.safetensors"):
        file.unlink()
    estimator = Estimator(State(config=state.config))
    found = estimator.assets({"embedding/enc": state.shards})["embedding/enc"]
    assert found.flops is None and found.tokens
    assert "weights are not on this machine" in estimator.model("embedding/enc").unknown
