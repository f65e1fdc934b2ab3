"""The Python API: what the commands do and show, as frames and objects."""

import html
import json
import os
import shutil
import signal
import subprocess
import sys
import warnings
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch

import gateau_dagster
from gateau_dagster.pipeline.observed import state_of
from tests.kit.error_codes import refused
from tests.kit.project import change_config, command_environment, make_project, sample, write_model
from tests.runs.test_kill import instance_of

PLUG_IN = """
import polars as pl
from gateau_dagster.methods.method import Method

class Own(Method):
    name, title, source, per_sample = "own", "Long responses.", "here", True

    def reads(self):
        return {"raw_long_sft": ["sample_id", "response"]}

    def score(self, tables):
        return tables["raw_long_sft"].select("sample_id", score=pl.col("response").str.len_bytes().cast(pl.Float64))
"""


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
    ranked = scores.drop("source", "instruction").sort("sample_id")
    assert ranked.equals(pl.read_parquet(store / "combined_scores.parquet").sort("sample_id"))
    assert (scores["response_tokens"] > 0).all()
    raw = dict(project.table("raw_long_sft").select("sample_id", "instruction").iter_rows())
    assert scores["instruction"].to_list() == [raw[name] for name in scores["sample_id"]]
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
    change_config(tmp_path / "gateau.yaml", long_sft={"shards": 2})
    assert project.plan(until="raw_long_sft")["partition"].to_list() == ["0", "1"]
    project.run(until="raw_long_sft")
    assert project.plan(until="raw_long_sft").is_empty(), "it has run what was planned"
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


def test_every_call_reads_the_file_as_it_is(project: gateau_dagster.Project, tmp_path: Path) -> None:
    file = tmp_path / "project" / "gateau.yaml"
    assert project.plan().is_empty()
    change_config(file, selection={"fraction": 0.5})
    assert project.plan(until="selected_subset")["asset"].to_list() == ["selected_subset"]
    assert project.config.selection.fraction == 0.5
    written = file.read_text()
    file.write_text("long_sft: [")
    with refused("config.not_yaml"):
        project.plan()
    file.unlink()
    for call in (project.plan, project.selected, lambda: project.table("cam")):
        with refused("config.unreadable", "gateau.yaml"):
            call()
    assert "project" in repr(project)
    file.write_text(written)
    assert project.plan(until="selected_subset")["asset"].to_list() == ["selected_subset"]


def test_a_project_keeps_its_file_but_not_a_plug_in(
    project: gateau_dagster.Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "project"
    own = folder / "own.py"
    own.write_text(PLUG_IN)
    change_config(folder / "gateau.yaml", selection={"plugins": ["own.py"], "compare": ["own"]})
    monkeypatch.setenv("GATEAU_CONFIG", str(folder / "gateau.yaml"))
    opened = gateau_dagster.open()
    monkeypatch.setenv("GATEAU_CONFIG", str(tmp_path / "elsewhere.yaml"))
    before = opened.config
    state = state_of(config=before)
    for shard in state.shards:
        state.store.write(
            pl.DataFrame({"sample_id": []}), "method_scores/own", shard, state.wanted_stamp("method_scores/own", shard)
        )
    assert opened.plan(until="method_scores/own").is_empty()
    own.write_text(PLUG_IN.replace("len_bytes", "len_chars"))
    assert {*opened.plan(until="method_scores/own")["why"]} == {"changed: code version"}


def test_what_is_out_of_date_is_said(project: gateau_dagster.Project, tmp_path: Path) -> None:
    calls = (
        project.selected,
        project.scores,
        project.to_pandas,
        project.to_dataset,
        lambda **how: project.table("cam", **how),
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for call in calls:
            call(require_current=True)
    change_config(tmp_path / "project" / "gateau.yaml", selection={"fraction": 0.5})
    with pytest.warns(gateau_dagster.OutOfDateWarning) as found:
        project.show(project.selected()["sample_id"][0])
        project.to_pandas()
    assert len(found) == 3 and {Path(each.filename).name for each in found} == {"test_api.py"}
    change_config(tmp_path / "project" / "gateau.yaml", scoring={"segment_length": 8})
    for call in calls:
        with pytest.warns(gateau_dagster.OutOfDateWarning, match="out of date.*segment_length.*gateau run"):
            call()
        with refused("storage.out_of_date", "segment_length"):
            call(require_current=True)
    (tmp_path / "project" / "long.jsonl").unlink()
    with pytest.warns(gateau_dagster.OutOfDateWarning, match="not known"):
        project.selected()
    with refused("storage.out_of_date", "not known"):
        project.selected(require_current=True)


@pytest.mark.parametrize(
    ("records", "said"),
    [
        (
            [{"id": 9, "context": "c", "instruction": "q", "response": ""}],
            r"record 2 of samples \(id 9\): empty response",
        ),
        ([{"context": "c", "instruction": "q", "response": "a", "images": ["x.png"]}], "record 2 of samples: .*images"),
        ([{**sample(0), "response": "other"}], "record 1.*\n.*record 2"),
        ([{}] * 8, "8 records cannot be used(.*\n)+.*and 3 more"),
    ],
)
def test_a_record_that_cannot_be_used_is_named_before_a_model_is_read(
    records: list[dict[str, object]], said: str, tmp_path: Path
) -> None:
    (tmp_path / "model").mkdir()
    with refused("api.records", said):
        gateau_dagster.score(tmp_path / "model", [sample(0), *records], window=32)
    with refused("api.records", r"score\.scoring\.dtype: .*torch"):
        gateau_dagster.score(tmp_path / "model", [sample(0)], window=32, dtype=torch.float32)
    with refused("api.records", "no record"):
        gateau_dagster.score(tmp_path / "model", iter(()), window=32)


def test_a_notebook_shows_a_sample_and_not_its_whole_context(project: gateau_dagster.Project) -> None:
    found = project.show(project.selected()["sample_id"][0])
    page, text = found._repr_html_(), repr(found)
    assert found.sample.sample_id in page and found.sample.sample_id in text and len(text) < 400
    odd = replace(found, sample=replace(found.sample, context="<b>" * 10_000, source="<i>"))
    table, frame = page.partition("<iframe")[::2]
    assert "<table>" in table and project.evidence(found.sample.sample_id)._repr_html_() == f"<iframe{frame}"
    odd = replace(odd, maps=replace(odd.maps, maps={}))
    assert "<b>" not in odd._repr_html_() and "<i>" not in odd._repr_html_() and len(odd._repr_html_()) < 12_000


@pytest.mark.long
def test_scores_without_a_project(tmp_path: Path) -> None:
    write_model(tmp_path / "model", seed=2)
    records = [{**sample(number, sentences=12), "id": np.int64(number), "at": datetime.now(UTC)} for number in range(5)]
    found = gateau_dagster.score(tmp_path / "model", records, window=32, max_length=np.int64(256), segment_length=16)
    assert {*found["sample_id"]} == {str(number) for number in range(5)}
    assert found["score"].to_list() == sorted(found["score"], reverse=True)


def test_frames_for_other_libraries(project: gateau_dagster.Project) -> None:
    with refused("export.format", "mesages"):
        project.to_dataset("mesages")
    pytest.importorskip("datasets", reason="datasets is not installed")
    made = project.to_dataset()
    assert made.num_rows == 8 and json.loads(json.dumps(made[0]["messages"]))[0]["role"] == "user"
    mix = {each["sample_id"]: each for each in project.table("training_mix").to_dicts()}
    for record in project.to_dataset("tokenised").to_list():
        learned = mix[record["sample_id"]]
        assert record["input_ids"] == learned["input_ids"] and len(record["labels"]) == len(record["attention_mask"])
    assert project.to_pandas()["rank"].tolist() == project.selected()["rank"].to_list()


def test_only_what_is_named_is_there() -> None:
    assert {"GateauPipeline", "OutOfDateWarning", "open", "score", "Project", "__version__"} == {
        *gateau_dagster.__all__
    }
    assert gateau_dagster.__version__.count(".") == 2
    with pytest.raises(AttributeError, match="opne"):
        gateau_dagster.opne  # noqa: B018  # pyright: ignore[reportAttributeAccessIssue]
