import io
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from rich.console import Console

from gateau_dagster.cli import plan as module
from gateau_dagster.cli.commands import cli
from gateau_dagster.cli.plan import (
    SCORED_COLUMNS,
    plan_record,
    print_plan,
    show_forecasts,
    show_plan,
)
from gateau_dagster.features.estimates.estimator import Estimator
from gateau_dagster.features.estimates.forecast import grounds
from gateau_dagster.pipeline.observed import state_of
from gateau_dagster.pipeline.project import load_project
from gateau_dagster.pipeline.state import State
from gateau_dagster.pipeline.work_forecast import PEAKS, AssumedDevices, WorkForecast
from tests.kit.project import change_config, make_project


def shown(estimates: dict[str, WorkForecast], *, price: float | None = None) -> dict[str, list[str]]:
    """The figures that are printed, by the row's name."""
    text = io.StringIO()
    show_forecasts(Console(file=text, width=100), "to score", SCORED_COLUMNS, estimates.values(), price=price)
    rows = [re.split(r"  +", line.strip()) for line in text.getvalue().splitlines()[2:]]
    return {name: cells for name, *cells in rows}


@pytest.mark.parametrize(
    ("low", "high", "text"),
    [
        (None, None, "unknown"),
        (0.2, 0.4, "< 1 s"),
        (12.4, 12.4, "12 s"),
        (90.0, 500.0, "2 to 8 min"),
        (50.0, 300.0, "50 s to 5 min"),
        (7200.0, 864_000.0, "2.0 h to 10.0 days"),
    ],
)
def test_a_time_is_a_range_where_it_is_not_known_well(low: float | None, high: float | None, text: str) -> None:
    found = WorkForecast(asset="cam", samples=1234, amount=5_678, unit="tokens", flops=5.2e7, low=low, high=high)
    assert shown({"cam": found}) == {"cam": ["1,234", "5,678", "52 M", text]}, "one asset needs no sum"


def test_another_setting_has_a_line_of_its_own() -> None:
    other = WorkForecast(asset="cam", samples=2, amount=30, unit="tokens", flops=400.0, low=1.0, high=1.0)
    found = replace(other, amount=50, by_setting={"scoring.segments: screened": other})
    assert shown({"cam": found}) == {
        "cam": ["2", "50", "400", "1 s"],
        "with scoring.segments: screened": ["30", "400", "1 s"],
    }


def test_a_price_adds_what_the_devices_cost() -> None:
    one = WorkForecast(asset="cam", samples=2, amount=30, unit="tokens", flops=400.0, low=1800.0, high=7200.0)
    slow = replace(one, asset="slow", devices=8)
    found = shown({"cam": one, "slow": slow, "new": replace(one, asset="new", low=None, high=None)}, price=3.0)
    assert {name: cells[-1] for name, cells in found.items()} == {
        "cam": "1.50 to 6.00",
        "slow": "12.00 to 48.00",
        "new": "unknown",
        "together (known part)": "13.50 to 54.00",
    }


def test_a_gpu_is_named_by_the_table_of_peaks() -> None:
    unknown = CliRunner().invoke(cli, ["plan", "--on", "h1000"])
    assert unknown.exit_code == 2 and ", ".join(PEAKS) in unknown.output


def test_variants_are_counted_among_variants(tmp_path: Path) -> None:
    variants = {"methods": ["length"], "fractions": [0.25, 0.5]}
    file = make_project(
        tmp_path, samples=12, shards=2, training=True, selection={"method": "length"}, variants=variants
    )
    state = state_of(config=load_project(file))
    found = {each["asset"]: each for each in plan_record(state, state.plan())["work"]}
    names = ["base", "checkpoint", "length-0.25", "length-0.5"]
    assert (found["variant/checkpoint"]["variants"], found["variant/checkpoint"]["shards"]) == (names, [])
    assert found["raw_long_sft"]["shards"] == ["0", "1"] and "variants" not in found["raw_long_sft"]
    text = io.StringIO()
    show_plan(Console(file=text, width=200), state, state.plan())
    rows = {line.split()[0]: line for line in text.getvalue().splitlines() if line.strip()}
    assert "all 4" in rows["variant/checkpoint"] and "all 2" in rows["raw_long_sft"]


@pytest.fixture
def state(tmp_path: Path) -> State:
    return state_of(config=load_project(make_project(tmp_path, samples=6, shards=2)))


def test_the_record_is_the_plan_for_programs(state: State) -> None:
    record = json.loads(json.dumps(plan_record(state, state.plan())))
    assert record["up_to_date"] is False
    assert record["work"][0] == {"asset": "raw_long_sft", "shards": ["0", "1"], "why": "missing", "conditional": False}
    assert set(record["estimates"]) == {"perplexity/short", "perplexity/long", "cam"}
    assert all(each["samples"] == 6 and each["seconds"] > 0 for each in record["estimates"].values())
    assert all(each["seconds_low"] < each["seconds"] < each["seconds_high"] for each in record["estimates"].values())
    assert any("a matrix product of" in line and "perplexity/short" in line for line in record["grounds"])
    keys = ["up_to_date", "work", "estimates", "workers", "grounds", "rejected", "amounts", "memory", "power"]
    keys += ["forecast", "judging", "truncation", "left_out", "warnings"]
    assert [*record] == keys, "in the order of places, not of features"
    until = plan_record(state, state.plan_until("raw_long_sft"))
    assert (until["estimates"], until["grounds"]) == ({}, [])


def test_it_is_printed_as_one_object(state: State, monkeypatch: pytest.MonkeyPatch) -> None:
    text = io.StringIO()
    monkeypatch.setattr(module, "console", lambda: Console(file=text))
    print_plan(state.config, "raw_long_sft", as_json=True)
    assert [work["asset"] for work in json.loads(text.getvalue())["work"]] == ["raw_long_sft"]


def test_workers_can_be_asked_for(state: State, monkeypatch: pytest.MonkeyPatch) -> None:
    alone, both = plan_record(state, state.plan()), plan_record(state, state.plan(), AssumedDevices(workers=2))
    assert (alone["workers"], both["workers"]) == (1, 2)
    for asset, found in both["estimates"].items():
        assert found["tokens"] == alone["estimates"][asset]["tokens"]
    assert not any("parallel workers" in line for line in alone["grounds"])
    assert "Times are for 2 parallel workers, each with a device like this machine's." in " ".join(both["grounds"])
    assert not any("whole shard" in line for line in both["grounds"])
    many = " ".join(plan_record(state, state.plan(), AssumedDevices(workers=1000))["grounds"])
    assert "for 1,000 parallel workers" in many and "with long_sft.shards 2, at most as many workers score" in many
    text = io.StringIO()
    monkeypatch.setattr(module, "console", lambda: Console(file=text, width=200))
    print_plan(state.config, None, assumed=AssumedDevices(workers=3))
    assert "Times are for 3 parallel workers" in text.getvalue()


def test_no_workers_are_counted_where_nothing_is_scored(state: State) -> None:
    assert plan_record(state, state.plan_until("raw_long_sft"), AssumedDevices(workers=4))["workers"] is None


def test_what_is_not_known_is_said_with_its_reason(state: State, tmp_path: Path) -> None:
    (tmp_path / "short" / "config.json").write_text("{}")
    for file in (tmp_path / "short").glob("tokenizer*"):
        file.unlink()
    estimator = Estimator(state_of(config=state.config))
    estimates = estimator.assets({"perplexity/short": ["0", "1"], "perplexity/long": ["0", "1"]})
    lines = list(grounds(estimator, estimates))
    assert any("models.short: FLOPs are not known: the config.json of short" in line for line in lines)
    assert any("4 characters each, because models.short has no tokenizer" in line for line in lines)
    rows = shown(estimates)
    assert rows["perplexity/short"][-2:] == ["unknown", "unknown"]
    assert "unknown" not in rows["perplexity/long"] + rows["together (known part)"]


def test_a_table_whose_method_does_not_say_what_it_takes_is_named(tmp_path: Path) -> None:
    selection = {"compare": ["ifd"], "segment_lengths": [32]}
    state = state_of(config=load_project(make_project(tmp_path, samples=6, shards=2, selection=selection)))
    estimator = Estimator(state)
    estimator.tables["response_alone/long"] = ("long", None)
    estimates = estimator.assets(estimator.scored(state.plan()))
    assert {*estimates} == {"perplexity/short", "perplexity/long", "cam", "cam_at/32", "response_alone/long"}
    assert estimates["cam_at/32"].seconds
    rows = shown(estimates)
    assert rows["response_alone/long"] == ["6", *["unknown"] * 3]
    assert [*rows][-1] == "together (known part)"
    (said,) = [line for line in grounds(estimator, estimates) if line.startswith("response_alone/long: ")]
    assert "not estimated, because its method does not declare" in said


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
        f"Left out, since length does not need them: {named}. Request one with --until, or name a method that reads it "
        "in selection.compare."
    ]
