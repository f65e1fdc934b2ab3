"""Tokens and FLOPs against counting prompt by prompt; time against its parts."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file

from gateau_dagster import tables
from gateau_dagster.config import Config
from gateau_dagster.errors import GateauError
from gateau_dagster.estimate import scored_model
from gateau_dagster.estimate.calibration import Speed
from gateau_dagster.estimate.estimator import Estimate, Estimator, estimate_shards, processes
from gateau_dagster.estimate.outstanding_samples import PromptTokens
from gateau_dagster.estimate.token_rates import TokenRates
from gateau_dagster.execution.row_checkpoints import RowCheckpoints
from gateau_dagster.models.flops import ModelShape
from gateau_dagster.models.known_model import parameter_count
from gateau_dagster.pipeline.project import load_project
from gateau_dagster.pipeline.state import State
from tests.project import make_project, sample

_RATES = TokenRates(context=1.0, tail=1.0, response=0.25, frame=7, seconds=1e-6, samples=1)
_SPEED = Speed(overhead=0.5, linear=1e-9, attention=2e-9, head=3e-9, segments=4e-9, rows=5e-9, longest=64, layers=1)


@given(context=st.integers(0, 900), tail=st.integers(1, 300), length=st.integers(1, 64), limit=st.integers(50, 700))
def test_tokens_against_building_the_prompts(context: int, tail: int, length: int, limit: int) -> None:
    row = pl.DataFrame({"characters": [context + tail], "tail_characters": [tail]})
    tokens = PromptTokens(row, _RATES, limit=limit, segment_length=length)
    outside = tail + _RATES.frame
    if outside > limit:  # rejected
        assert tokens.prompt[0] == tokens.segment_tokens[0] == tokens.response[0] == 0
        return
    kept = list(range(min(context, limit - outside)))
    prompts = [len(kept[start : start + length]) + outside for start in range(0, len(kept), length)]
    assert tokens.prompt[0] == len(kept) + outside
    assert (tokens.segments[0], tokens.segment_tokens[0]) == (len(prompts), sum(prompts))
    assert not prompts or (tokens.segment_prompt[0], tokens.last_segment[0]) == (prompts[0], prompts[-1])
    assert 1 <= tokens.response[0] <= outside


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> State:
    """Rates and speed are given, so that figures can be counted."""
    monkeypatch.setattr(scored_model, "token_rates", lambda *_: _RATES)
    monkeypatch.setattr(scored_model.ScoredModel, "speed", _SPEED)
    return State(config=load_project(make_project(tmp_path, samples=9, shards=2)))


def counted(state: State, *, shared: bool) -> dict[str, tuple[int, float, float]]:
    """Tokens, FLOPs and seconds of `perplexity/long` and `cam`, prompt by prompt from the texts themselves."""
    shape = scored_model.ScoredModel(state, "long").shape
    assert shape is not None
    tokens: dict[str, int] = {"long": 0, "cam": 0}
    flops: dict[str, float] = {"long": 0.0, "cam": 0.0}
    seconds = 0.0
    for number in range(9):
        record = sample(number)
        tail = len(record["instruction"] + record["response"])
        response, outside = max(round(0.25 * tail), 1), tail + _RATES.frame
        context = min(len(record["context"]), 512 - outside)
        full = context + outside
        for name, head in (("long", response), ("cam", 0)):
            if name == "long" or not shared:
                sizes = np.array([float(full)]), np.array([float(response)])
                body = shape.linear_pass_flops(*sizes)[0], shape.attention_pass_flops(*sizes)[0]
                tokens[name] += full
                flops[name] += sum(body) + shape.head_flops(head)
                seconds += 0.5 + body[0] * 1e-9 + body[1] * 2e-9 + shape.head_flops(head) * 3e-9
                seconds += (len(record["context"]) + tail) * 1e-6 / torch.get_num_threads()
        for start in range(0, context, 16):
            prompt = min(16, context - start) + outside
            tokens["cam"] += prompt
            layers = shape.pass_flops(np.array([float(prompt)]), np.array([float(response)]))[0]
            flops["cam"] += layers + shape.head_flops(response)
            seconds += layers * 4e-9 + shape.head_flops(response) * 3e-9
        layers = shape.pass_flops(np.array([float(outside)]), np.array([float(response)]))[0]
        tokens["cam"] += outside
        flops["cam"] += layers + shape.head_flops(response)
        seconds += layers * 4e-9 + shape.head_flops(response) * 3e-9
        rows = shape.attention_row_flops(response, full)
        flops["cam"] += rows
        seconds += rows * 5e-9
    return {name: (tokens[name], flops[name], seconds) for name in tokens}


@pytest.mark.parametrize("shared", [True, False])
def test_against_counting_prompt_by_prompt(project: State, shared: bool) -> None:
    wanted = {"perplexity/long": project.shards, "cam": project.shards}
    if shared:
        found = Estimator(project).assets(wanted)
    else:
        found = {asset: Estimator(project).assets({asset: shards})[asset] for asset, shards in wanted.items()}
    right = counted(project, shared=shared)
    for asset, name in (("perplexity/long", "long"), ("cam", "cam")):
        assert (found[asset].samples, found[asset].tokens) == (9, right[name][0])
        assert found[asset].flops == pytest.approx(right[name][1], rel=1e-12)
    total = sum(each.seconds or 0.0 for each in found.values())
    assert total == pytest.approx(right["cam"][2], rel=1e-9)


def test_shards_add_up_and_a_common_pass_is_divided_by_flops(project: State) -> None:
    wanted = {"perplexity/long": project.shards, "cam": project.shards}
    shards, whole = estimate_shards(project, wanted), Estimator(project).assets(wanted)
    for asset in wanted:
        parts = [shards[asset, shard] for shard in project.shards]
        assert sum(part.tokens or 0 for part in parts) == whole[asset].tokens
        assert sum(part.seconds or 0.0 for part in parts) == pytest.approx(whole[asset].seconds)
    for shard in project.shards:
        long, cam = shards["perplexity/long", shard], shards["cam", shard]
        assert long.seconds and cam.seconds and long.flops and cam.flops
        assert long.seconds / cam.seconds == pytest.approx(long.flops / cam.flops)


def test_processes_on_the_same_cores_are_no_faster_together(project: State, monkeypatch: pytest.MonkeyPatch) -> None:
    alone = Estimator(project).assets({"cam": project.shards})["cam"].seconds
    scoring = project.config.scoring.model_copy(update={"workers": 2})
    config = project.config.model_copy(update={"scoring": scoring})
    monkeypatch.setattr("os.cpu_count", torch.get_num_threads)
    assert processes(scoring) == (2, 1)
    state = State(config=config)
    assert Estimator(state).assets({"cam": state.shards})["cam"].seconds == pytest.approx(alone)
    each = estimate_shards(state, {"cam": state.shards})
    assert sum(part.seconds or 0.0 for part in each.values()) == pytest.approx(2 * (alone or 0.0))
    monkeypatch.setattr("os.cpu_count", lambda: 2 * torch.get_num_threads())
    assert Estimator(state).assets({"cam": state.shards})["cam"].seconds == pytest.approx((alone or 0.0) / 2)


def test_a_model_that_is_not_here_has_tokens_but_no_time(tmp_path: Path) -> None:
    file = make_project(tmp_path, samples=3, shards=1)
    (tmp_path / "short" / "config.json").write_text("{}")
    state = State(config=load_project(file))
    estimator = Estimator(state)
    found = estimator.assets({"perplexity/short": ["0"]})["perplexity/short"]
    assert found.tokens
    assert (found.flops, found.seconds) == (None, None)
    assert "config.json of short" in estimator.model("perplexity/short").unknown


def test_nothing_to_score_takes_no_time(project: State) -> None:
    assert Estimator(project).assets({"cam": []})["cam"] == Estimate(samples=0, tokens=0, flops=0, seconds=0)


def test_rows_of_an_interrupted_run_are_not_counted(project: State) -> None:
    first = project.index.accepted.filter(pl.col("shard") == 0).row(0, named=True)
    rows = RowCheckpoints(project.store, "cam", "0", project.node("cam").scorer, tables.schema(tables.CAM))
    row = {"segments": 0, "segment_perplexity": [], "segment_attention": [], "cas": None}
    rows.add({"sample_id": first["sample_id"], "digest": first["digest"], **row})
    rows.save()
    assert Estimator(project).assets({"cam": project.shards})["cam"].samples == 8
    assert Estimator(project).assets({"perplexity/long": project.shards})["perplexity/long"].samples == 9


def configured(folder: Path) -> Config:
    models = {"short": {"path": "short"}, "long": {"path": "long"}}
    return Config.model_validate({"long_sft": {"path": "x"}, "models": models, "folder": folder})


def test_parameters_are_counted_from_the_file_s_header(tmp_path: Path) -> None:
    (tmp_path / "short").mkdir()
    save_file({"a": torch.zeros(3, 4), "b": torch.zeros(5)}, tmp_path / "short" / "one.safetensors")
    save_file({"c": torch.zeros(2, 2, 2), "scalar": torch.zeros(())}, tmp_path / "short" / "two.safetensors")
    assert parameter_count(configured(tmp_path), "short") == 12 + 5 + 8 + 1
    assert parameter_count(configured(tmp_path), "long") is None


@pytest.mark.parametrize("content", [b"", b"version https://git-lfs.github.com/spec/v1\n", b"\xff" * 100])
def test_a_file_that_holds_no_weights_is_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "short").mkdir()
    (tmp_path / "short" / "model.safetensors").write_bytes(content)
    with pytest.raises(GateauError, match=r"models\.short\.path: .*model\.safetensors is no safetensors file"):
        parameter_count(configured(tmp_path), "short")


def test_the_shape_is_that_of_the_configuration(tmp_path: Path) -> None:
    state = State(config=load_project(make_project(tmp_path, samples=1, shards=1)))
    content: dict[str, Any] = json.loads((tmp_path / "long" / "config.json").read_text())
    shape = scored_model.ScoredModel(state, "long").shape
    assert isinstance(shape, ModelShape)
    assert (shape.layers, shape.hidden, shape.vocabulary) == (1, 16, content["vocab_size"])
    assert math.isclose(shape.token_flops, 2 * (16 * 8 * 2 * (2 + 1) + 3 * 16 * 32))
