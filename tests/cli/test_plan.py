import io
import json
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from gateau_dagster.cli import plan as module
from gateau_dagster.cli.plan import _duration, _flops, _shards, grounds, plan_record, print_plan, show_estimates
from gateau_dagster.estimate.estimator import Estimate, Estimator, scored_work
from gateau_dagster.pipeline.plan import Work
from gateau_dagster.pipeline.project import load_project
from gateau_dagster.pipeline.state import State
from tests.project import change_config, make_project


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(None, "unknown"), (0.2, "< 1 s"), (12.4, "12 s"), (90, "2 min"), (7200, "2.0 h"), (864_000, "10.0 days")],
)
def test_durations(seconds: float | None, text: str) -> None:
    assert _duration(seconds) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (None, "unknown"),
        (0.0, "0"),
        (999.0, "999"),
        (1500.0, "1.5 k"),
        (5.2e7, "52 M"),
        (1.3e15, "1.3 P"),
        (1e30, "1000000 Y"),
    ],
)
def test_flops(count: float | None, text: str) -> None:
    assert _flops(count) == text


def test_shards() -> None:
    def work(*shards: str | None) -> Work:
        return Work(asset="cam", reasons=dict.fromkeys(shards, "missing"))

    assert _shards(work(None), 4) == ""
    assert _shards(work("0", "1"), 2) == "all 2"
    assert _shards(work("3", "1"), 16) == "2 of 16: 1, 3"
    assert _shards(work(*"0123456"), 16) == "7 of 16: 0, 1, 2, 3, …"


@pytest.fixture
def state(tmp_path: Path) -> State:
    return State(config=load_project(make_project(tmp_path, samples=6, shards=2)))


def test_the_record_is_the_plan_for_programs(state: State) -> None:
    record = json.loads(json.dumps(plan_record(state, state.plan())))
    assert record["up_to_date"] is False
    assert record["work"][0] == {"asset": "raw_long_sft", "shards": ["0", "1"], "why": "missing", "conditional": False}
    assert set(record["estimates"]) == {"perplexity/short", "perplexity/long", "cam"}
    assert all(each["samples"] == 6 and each["seconds"] > 0 for each in record["estimates"].values())
    assert any(line.startswith("Time: scoring itself timed") for line in record["grounds"])
    until = plan_record(state, state.plan_until("raw_long_sft"))
    assert (until["estimates"], until["grounds"]) == ({}, [])


def test_it_is_printed_as_one_object(state: State, monkeypatch: pytest.MonkeyPatch) -> None:
    text = io.StringIO()
    monkeypatch.setattr(module, "console", lambda: Console(file=text))
    print_plan(state.config, "raw_long_sft", as_json=True)
    assert [work["asset"] for work in json.loads(text.getvalue())["work"]] == ["raw_long_sft"]


def test_what_is_not_known_is_said_with_its_reason(state: State, tmp_path: Path) -> None:
    (tmp_path / "short" / "config.json").write_text("{}")
    for file in (tmp_path / "short").glob("tokenizer*"):
        file.unlink()
    estimator = Estimator(State(config=state.config))
    estimates = estimator.assets({"perplexity/short": ["0", "1"], "perplexity/long": ["0", "1"]})
    lines = list(grounds(estimator))
    assert any("models.short: FLOPs and time are not known: the config.json of short" in line for line in lines)
    assert any("4 characters each, for models.short has no tokenizer here" in line for line in lines)
    text = io.StringIO()
    show_estimates(Console(file=text, width=100), estimates)
    short, long, together = text.getvalue().splitlines()[-3:]
    assert short.split()[-2:] == ["unknown", "unknown"]
    assert "unknown" not in long
    assert together.startswith("together (known part)")


def test_one_asset_needs_no_sum() -> None:
    text = io.StringIO()
    show_estimates(Console(file=text), {"cam": Estimate(samples=1, tokens=2, flops=3.0, seconds=4.0)})
    assert "together" not in text.getvalue()


def test_a_table_whose_method_does_not_say_what_it_takes_is_named(tmp_path: Path) -> None:
    selection = {"compare": ["ifd"], "segment_lengths": [32]}
    state = State(config=load_project(make_project(tmp_path, samples=6, shards=2, selection=selection)))
    estimator = Estimator(state)
    estimator.tables["response_alone/long"] = replace(estimator.tables["response_alone/long"], effort=None)
    estimates = estimator.assets(scored_work(state, state.plan()))
    own = {"cam_at/32", "response_alone/long"}
    assert {*estimates} == {"perplexity/short", "perplexity/long", "cam", *own}
    assert estimates["cam_at/32"].seconds
    assert estimates["response_alone/long"] == Estimate(samples=6, tokens=None, flops=None, seconds=None)
    text = io.StringIO()
    show_estimates(Console(file=text, width=100), estimates)
    lines = text.getvalue().splitlines()
    assert next(line for line in lines if "response_alone" in line).split()[1:] == ["6", *["unknown"] * 3]
    assert lines[-1].startswith("together (known part)")
    (said,) = [line for line in grounds(estimator) if line.startswith("response_alone/long: ")]
    assert "not estimated, since the method that brings this table does not say" in said


def test_what_nothing_reads_is_one_line(state: State, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = io.StringIO()
    monkeypatch.setattr(module, "console", lambda: Console(file=text, width=400))
    print_plan(state.config, "raw_long_sft")
    assert "Left out" not in text.getvalue(), "gateau reads all of them"
    change_config(tmp_path / "gateau.yaml", selection={"method": "length"})
    print_plan(load_project(tmp_path / "gateau.yaml"), None)
    lines = [line for line in text.getvalue().splitlines() if line.startswith("Left out")]
    named = "perplexity/long, perplexity/short, cam, combined_scores"  # in the order of the file's models
    assert [line.strip() for line in lines] == [
        f"Left out, since length does not need them: {named}. Ask for one with --until, or name a method that reads it "
        "in selection.compare."
    ]
