"""What CONTRIBUTING.md shows works: an asset by one declaration and one file, a new architecture, a raised version."""

import importlib
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gateau_dagster import assets
from gateau_dagster.pipeline import declarations
from tests.assets.harness import Pipeline, key_of, pipeline_on, value_of
from tests.kit.contributing import block, section
from tests.kit.project import make_project, sample, write_samples
from tests.kit.tiny_models import tokenizer


def run(code: str) -> dict[str, Any]:
    names: dict[str, Any] = {"__name__": "example"}
    exec(compile(code, "CONTRIBUTING.md", "exec"), names)
    return names


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Pipeline]:
    """A project whose pipeline has the example's asset."""
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "source_counts.py").write_text(block("Adding an asset", 1))
    declare = run(block("Adding an asset", 0))["source_counts"]
    monkeypatch.setattr(declarations, "DECLARED", (*declarations.DECLARED, declare))
    monkeypatch.setattr(assets, "__path__", [*assets.__path__, str(tmp_path / "more")])
    with pipeline_on(make_project(tmp_path, samples=6, shards=2, selection={"ground_truth": ["far"]})) as pipeline:
        yield pipeline
    sys.modules.pop("assets.source_counts", None)


def test_an_asset_is_a_declaration_and_a_file(project: Pipeline) -> None:
    done = project.refresh(until="source_counts")
    events = [event for run_id in done.run_ids for event in project.materialised(run_id)]
    made = next(event for event in events if key_of(event) == ("source_counts", None))
    assert {key_of(event)[0] for event in events} == {"raw_long_sft", "source_counts"}
    assert value_of(made, "sources") == 2
    table = project.state().store.read("source_counts")
    assert table.rows() == [("far", 3, True), ("near", 3, False)]
    assert "source_counts" in project.state().pipeline.required
    assert "source_counts" in project.state().asset("report").reads
    # One more sample reaches it, and it alone is made again for a setting of its own.
    write_samples(project.file.parent / "long.jsonl", [sample(number) for number in range(7)])
    project.refresh(until="source_counts")
    assert project.state().store.read("source_counts")["samples"].to_list() == [3, 4]
    assert project.state().plan_until("source_counts").work == []


def test_a_new_architecture_is_tried_out(tmp_path: Path) -> None:
    names = run(block("A new model architecture"))
    names["write_small"](tmp_path, len(tokenizer()))
    tokenizer().save_pretrained(tmp_path)
    assert names["tried_out"](tmp_path) == {"packed": True, "narrowed": True, "observed": True}


def test_a_raised_version_is_said_as_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = section("Raising a code version")
    found = re.search(r"--- a/(\S+)\.py\n-(\w+) = \"(\w+)\"\n\+\w+ = \"(\w+)\"\n", text)
    asked = re.search(r"```text\n(\w+): (.*)\n```", text)
    assert found is not None and asked is not None
    file, name, old, new = found.groups()
    assert getattr(importlib.import_module(file.replace("/", ".")), name) == old
    imported = {"gateau_dagster/selection/combine": "SCORES_CODE_VERSION"}[file]
    with pipeline_on(make_project(tmp_path, samples=6, shards=1)) as project:
        project.refresh(until="combined_scores")
        monkeypatch.setattr(declarations, imported, new)
        work = project.state().plan_until("combined_scores").work
        assert [(each.asset, each.reasons[None]) for each in work] == [asked.groups()]
        project.refresh(until="combined_scores")
        assert not project.state().plan_until("combined_scores")
