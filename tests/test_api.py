"""The Python API: what the commands do and show, as frames and objects."""

import html
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest

import gateau_dagster
from tests.error_codes import refused
from tests.project import change_config, command_environment, make_project, sample, write_model
from tests.runs.test_kill import instance_of


@pytest.fixture
def project(whole_run: Path, tmp_path: Path) -> gateau_dagster.Project:
    shutil.copytree(whole_run.parent, tmp_path / "project")
    return gateau_dagster.open(tmp_path / "project" / "gateau.yaml")


def test_tables_of_a_finished_run(project: gateau_dagster.Project, tmp_path: Path) -> None:
    store = tmp_path / "project" / "store"
    assert project.plan().is_empty() and str(store) in repr(project)
    chosen = project.selected()
    assert chosen["rank"].to_list() == sorted(chosen["rank"]) and chosen.height == 8
    scores = project.scores()
    assert scores["rank"].to_list() == [*range(1, 37)]
    assert scores.sort("sample_id").equals(pl.read_parquet(store / "combined_scores.parquet").sort("sample_id"))
    assert project.table("cam").height == 36
    found = project.show(chosen["sample_id"][0])
    assert found.selected and found.sample.context == chosen["context"][0]
    with refused("usage.asset", "camm"):
        project.table("camm")


def test_a_notebook_shows_evidence_as_the_report_does(project: gateau_dagster.Project) -> None:
    name = project.selected()["sample_id"][0]
    found = project.evidence(name[:4] if len(name) < 4 else name)
    page = html.unescape(found._repr_html_().partition('srcdoc="')[2])
    assert found.sample_id == name and found.evidence.segments
    assert "<script" not in page and page.count('class="seg ') == len(found.evidence.segments)


def test_what_would_run_after_an_edit(project: gateau_dagster.Project, tmp_path: Path) -> None:
    change_config(tmp_path / "project" / "gateau.yaml", selection={"fraction": 0.5})
    changed = gateau_dagster.open(tmp_path / "project" / "gateau.yaml")
    plan = changed.plan(until="selected_subset")
    assert plan["asset"].to_list() == ["selected_subset"] and "fraction" in plan["why"][0]
    assert plan["partition"].to_list() == [None]


def test_a_run_prints_its_progress_and_raises_its_reason(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    project = gateau_dagster.open(make_project(tmp_path, samples=6, shards=1))
    project.run(until="raw_long_sft")
    assert "Done" in capfd.readouterr().out and project.table("raw_long_sft").height == 6
    with refused("api.run_failed", "raw_long_stf"):
        project.run(until="raw_long_stf")


@pytest.mark.long
def test_one_interrupt_ends_a_run_in_order(tmp_path: Path) -> None:
    """A terminal's interrupt reaches a whole group of processes; a run that hears two ends at once."""
    # A sample a pass: the run is at work for seconds after its first table, also where this process has to wait.
    file = make_project(tmp_path, samples=60, shards=4, scoring={"batch_tokens": 1})
    # Tests that are started in the background would hand on that the signal is ignored.
    heeds = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
    code = f"{heeds}; import gateau_dagster; gateau_dagster.open({str(file)!r}).run()"
    with subprocess.Popen(
        [sys.executable, "-c", code],
        env=command_environment(),
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if "raw_long_sft" in line and "✓" in line:
                break
        os.killpg(process.pid, signal.SIGINT)
        rest = process.stdout.read()
    assert process.returncode != 0 and "at once" not in rest
    with instance_of(file) as instance:
        assert [run.status.value for run in instance.get_runs()] == ["CANCELED"]
    assert gateau_dagster.open(file).table("raw_long_sft").height == 60


@pytest.mark.long
def test_scores_without_a_project(tmp_path: Path) -> None:
    write_model(tmp_path / "model", seed=2)
    records = [sample(number, sentences=12) for number in range(5)]
    found = gateau_dagster.score(tmp_path / "model", records, window=32, max_length=256, segment_length=16)
    assert {*found["sample_id"]} == {record["id"] for record in records}
    assert found["score"].to_list() == sorted(found["score"], reverse=True)


@pytest.mark.long
def test_a_record_without_texts_is_the_reason_of_a_run_without_a_project(tmp_path: Path) -> None:
    write_model(tmp_path / "model", seed=2)
    with refused("api.run_failed"):
        gateau_dagster.score(tmp_path / "model", [{"id": "a"}], window=32)


def test_frames_for_other_libraries(project: gateau_dagster.Project) -> None:
    with refused("export.format", "mesages"):
        project.to_dataset("mesages")
    pytest.importorskip("datasets", reason="datasets is not installed")
    made = project.to_dataset()
    assert made.num_rows == 8 and json.loads(json.dumps(made[0]["messages"]))[0]["role"] == "user"
    assert project.to_pandas()["rank"].tolist() == project.selected()["rank"].to_list()


def test_only_what_is_named_is_there() -> None:
    assert {"GateauPipeline", "open", "score", "Project", "__version__"} == {*gateau_dagster.__all__}
    assert gateau_dagster.__version__.count(".") == 2
    with pytest.raises(AttributeError, match="opne"):
        gateau_dagster.opne  # noqa: B018  # pyright: ignore[reportAttributeAccessIssue]
