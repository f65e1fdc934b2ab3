"""A method that needs no model runs none, the page is whole without the presets, and the rest can be asked for."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from gateau_dagster.assets.runs.checks import checked
from gateau_dagster.assets.steps.definition import asset_definitions
from gateau_dagster.cli.plan import plan_record
from gateau_dagster.config import Config
from gateau_dagster.pipeline.declared import pipeline_of
from gateau_dagster.pipeline.observed import state_of
from gateau_dagster.pipeline.project import load_project
from gateau_dagster.pipeline.state import State
from gateau_dagster.resources import models
from tests.assets.harness import Pipeline, asset_key, key_of, pipeline_on
from tests.kit.project import change_config, make_project, sample, write_samples
from tests.pipeline.by_method import by_method
from tests.pipeline.test_pipeline import OF_THE_PAIR

NEEDED = ["raw_long_sft", "method_scores/length", "selected_subset", "report"]


@pytest.fixture(scope="module")
def by_length(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pipeline]:
    """12 samples in 2 shards, chosen by length; a model that is loaded is an error."""
    selection = {"method": "length", "ground_truth": ["far"]}
    file = make_project(tmp_path_factory.mktemp("length"), samples=12, shards=2, selection=selection)
    with pipeline_on(file) as project, pytest.MonkeyPatch.context() as patch:
        patch.setattr(models.ModelsResource, "load", _loads_nothing)
        project.refresh()
        yield project


def _loads_nothing(*_: Any, **__: Any) -> None:
    raise AssertionError("a model is loaded")


def names(state: State, until: str | None = None) -> list[str]:
    return [work.asset for work in state.plan_until(until).work]


def test_length_loads_no_model_and_makes_nothing_that_it_does_not_need(by_length: Pipeline) -> None:
    run = by_length.runs()[-1]
    assert {asset for asset, _ in map(key_of, by_length.materialised(run.run_id))} == {*NEEDED}
    assert not by_length.state().plan()
    assert {key[0] for key, stamp in by_length.state().recorded().items() if stamp is not None} == {*NEEDED}
    assert by_length.refresh().run_ids == []


def test_what_is_left_out_is_said_and_can_be_asked_for(by_length: Pipeline) -> None:
    state = by_length.state()
    record = plan_record(state, state.plan())
    assert record["up_to_date"] and set(json.loads(json.dumps(record))["left_out"]) == OF_THE_PAIR
    assert set(names(state, "combined_scores")) == OF_THE_PAIR
    assert names(state, "report") == []
    check = checked(state, state.asset("combined_scores"), "up_to_date")
    assert check.passed and check.metadata["summary"].value == "out of date, but no configured asset reads it"
    assert {dg.AssetKey(asset.split("/")) for asset in OF_THE_PAIR} <= set(
        by_length.definitions().resolve_asset_graph().get_all_asset_keys()
    )


def test_a_compared_method_asks_for_its_tables(by_length: Pipeline) -> None:
    change_config(by_length.file, selection={"compare": ["gateau"]})
    further = {"method_scores/gateau", "comparison", "report"}
    assert set(names(by_length.state())) == OF_THE_PAIR | further, "what is chosen stays"
    change_config(by_length.file, selection={"compare": []})
    assert names(by_length.state()) == []


@pytest.mark.parametrize(
    ("method", "compare"),
    [("gateau", []), ("length", []), ("far_gain", ["random"]), ("ladm", ["perplexity"]), ("length", ["hmg"])],
)
def test_dagster_sees_what_the_planner_sees(method: str, compare: list[str]) -> None:
    for models_of, training in ((None, True), ({}, False)):
        if models_of is not None and (method, compare) != ("length", []):
            continue
        config: Config = by_method(method, *compare, models=models_of, training=training)
        found = {key.to_user_string(): made for made in asset_definitions(config) for key in made.keys}
        pipeline = pipeline_of(config)
        declared = pipeline.by_key
        assert found.keys() == declared.keys()
        for name, asset in declared.items():
            key = asset_key(name)
            upstream = {*asset.inputs, *pipeline.shown_reads(name)}
            assert {"/".join(dep.path) for dep in found[name].asset_deps[key]} == upstream, name
            assert found[name].code_versions_by_key[key] == pipeline.code_versions[name]


def smallest(folder: Path) -> Path:
    """Samples and a method."""
    write_samples(folder / "long.jsonl", [sample(number) for number in range(12)])
    file = folder / "gateau.yaml"
    file.write_text("long_sft: {path: long.jsonl, shards: 2}\nselection: {method: length, compare: [random]}\n")
    return file


def test_the_smallest_configuration_needs_no_model(tmp_path: Path) -> None:
    state = state_of(config=load_project(smallest(tmp_path)))
    scores = ["method_scores/length", "method_scores/random"]
    assert names(state) == ["raw_long_sft", *scores, "selected_subset", "comparison", "report"]
    assert state.pipeline.left_out == []


@pytest.mark.long
def test_the_smallest_configuration_selects(tmp_path: Path) -> None:
    with pipeline_on(smallest(tmp_path)) as project:
        project.refresh()
        assert project.state().store.read("selected_subset").height == 1
        assert not project.state().plan()
