"""`gateau status`: each asset's standing, for people and for programs; looking leaves nothing behind."""

import io
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from dagster import DagsterInstance, DagsterRun, DagsterRunStatus
from dagster._core.test_utils import create_run_for_test
from rich.console import Console
from safetensors.torch import load_file, save_file

from gateau_dagster.assets.runs.history import failed_since, history_in, remember_records
from gateau_dagster.assets.runs.instance import open_instance
from gateau_dagster.assets.steps.metadata import DATA_VERSION_TAG
from gateau_dagster.cli.status import ago, history_of, show_status, size, status_record
from gateau_dagster.pipeline.observed import state_of
from gateau_dagster.pipeline.project import load_project
from gateau_dagster.resources.history import LastRun, asset_statuses, home_of, known_history, records_wanted
from tests.kit.project import change_config, gateau, make_project, sample, write_samples


def record(file: Path) -> dict[str, Any]:
    state = state_of(config=load_project(file))
    return json.loads(json.dumps(status_record(state, history_of(state))))


def by_asset(found: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {each["asset"]: each for each in found["assets"]}


def shown(file: Path) -> list[str]:
    state, text = state_of(config=load_project(file)), io.StringIO()
    show_status(Console(file=text, width=200), state, asset_statuses(state, history_of(state)))
    return text.getvalue().splitlines()


@pytest.mark.parametrize(
    ("count", "text"), [(3, "3 B"), (999, "999 B"), (1_000, "1.0 kB"), (1_234_567, "1.2 MB"), (5.55e11, "555 GB")]
)
def test_sizes(count: float, text: str) -> None:
    assert size(count) == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(5, "just now"), (60, "1 minute ago"), (7300, "2 hours ago"), (2e5, "2 days ago")]
)
def test_ages(seconds: float, text: str) -> None:
    assert ago(seconds) == text


def test_a_folder_s_name_is_no_markup(tmp_path: Path) -> None:
    folder = tmp_path / "a[" / "bold]"
    assert f"{folder}" in shown(make_project(folder, samples=4, shards=1))[0]


def test_before_the_first_run_everything_is_missing_and_no_file_is_made(tmp_path: Path) -> None:
    file = make_project(tmp_path, samples=6, shards=2)
    found = record(file)
    assert not found["up_to_date"] and {each["standing"] for each in found["assets"]} == {"missing"}
    assert not (tmp_path / "store").exists() and not (tmp_path / ".gateau" / "dagster").exists()


def test_a_failure_counts_until_a_later_record_mends_it() -> None:
    from datetime import UTC, datetime

    def at(minute: int, run: str) -> LastRun:
        return LastRun(run=run, when=datetime(2026, 1, 1, 0, minute, tzinfo=UTC), reason="why")

    last = {"cam": at(5, "a"), "report": at(1, "a")}
    failures = {"cam": at(3, "b"), "report": at(4, "b"), "checkpoint": at(4, "b")}
    assert set(failed_since(last, failures)) == {"report", "checkpoint"}


def test_after_a_run_and_an_edit(whole_run: Path, tmp_path: Path) -> None:
    shutil.copytree(whole_run.parent, tmp_path / "project")
    file = tmp_path / "project" / "gateau.yaml"
    before = record(file)
    assert before["up_to_date"] and {each["standing"] for each in before["assets"]} == {"current"}
    raw = by_asset(before)["raw_long_sft"]
    assert (raw["rows"], raw["parts"], raw["stale"], raw["rejected"]) == (36, 4, 0, 0)
    folder = file.parent / "store" / "raw_long_sft"
    assert raw["size"] == sum(each.stat().st_size for each in folder.rglob("*.parquet"))
    assert raw["run"] and raw["made"]

    records = [sample(number) for number in range(36)]
    records[5]["response"] = "new ."
    write_samples(file.parent / "long.jsonl", records)
    after = by_asset(record(file))
    assert not record(file)["up_to_date"]
    assert (after["raw_long_sft"]["standing"], after["raw_long_sft"]["stale"]) == ("stale", 1)
    assert after["report"]["standing"] == "stale" and "raw_long_sft" in after["report"]["why"]
    lines = shown(file)
    assert any(line.startswith("raw_long_sft ") and "1 of 4" in line for line in lines)
    assert any(line.startswith("! raw_long_sft: changed") for line in lines)


def test_what_is_remembered_of_dagster_is_what_dagster_has_on_record(whole_run: Path, tmp_path: Path) -> None:
    shutil.copytree(whole_run.parent, tmp_path / "project")
    file = tmp_path / "project" / "gateau.yaml"
    state = state_of(config=load_project(file))
    config, home = state.config, home_of(state.config)

    begun = list[DagsterRun]()
    other = dg.AssetMaterialization(["cam"], partition="0", tags={DATA_VERSION_TAG: "another"})
    # A change, and whether the records before it can be remembered: a run at work may die without an event.
    changes: tuple[tuple[Callable[[DagsterInstance], object], bool], ...] = (
        (lambda _: None, True),
        (lambda instance: instance.report_runless_asset_event(other), True),
        (lambda instance: begun.append(create_run_for_test(instance, status=DagsterRunStatus.STARTED)), True),
        (lambda _: None, False),
        (lambda instance: instance.report_run_failed(begun[0]), False),
        (lambda _: (home / "dagster.yaml").write_text((home / "dagster.yaml").read_text() + "\n"), True),
    )
    for number, (change, is_known) in enumerate(changes):
        for _ in range(2):
            remember_records(config)  # the first call records what is missing
        known = known_history(config)
        assert (known is not None) == is_known
        with open_instance(config) as instance:
            read = history_in(instance, config, state.pipeline.assets)
            assert known in (None, replace(read, on_record=records_wanted(state)))
            change(instance)
        assert known_history(config) == (None if number else known)
    remember_records(config)
    assert known_history(config) is not None
    change_config(file, selection={"fraction": 0.5})
    assert known_history(load_project(file)) is None


@pytest.mark.long
def test_a_run_that_failed_is_named_with_its_reason(whole_run: Path, tmp_path: Path) -> None:
    shutil.copytree(whole_run.parent, tmp_path / "project")
    file = tmp_path / "project" / "gateau.yaml"
    for weights in (file.parent / "long").glob("*.safetensors"):
        save_file(dict([*load_file(weights).items()][1:]), weights, metadata={"format": "pt"})  # found by loading it
    failed = gateau("run", "--config", str(file), "--until", "cam", folder=tmp_path, check=False)
    assert failed.returncode == 1
    cam = by_asset(record(file))["cam"]
    assert cam["standing"] == "failed" and cam["why"] and cam["run"] and cam["code"] == "models.incomplete"
    assert failed.stderr.rstrip().endswith("[models.incomplete]")
    assert any(line.startswith("cam ") and "failed" in line for line in shown(file))
