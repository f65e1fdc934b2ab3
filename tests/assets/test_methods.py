"""Methods through the pipeline: one of a plug-in, with a table of its own, beside others."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from gateau_dagster.comparison.result import MethodComparison
from gateau_dagster.data.sample import shard_of
from tests.assets.harness import Pipeline, pipeline_on, value_of
from tests.kit.project import change_config, make_project, sample, write_samples

SHARDS = 3
LETTERS = Path(__file__).parents[1] / "methods" / "letters.py"


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pipeline]:
    """12 samples in 3 shards under GATEAU, which is compared with its first half and the plug-in's method."""
    folder = tmp_path_factory.mktemp("methods")
    selection = {"fraction": None, "count": 4, "compare": ["hmg", "letters"], "plugins": ["own/letters.py"]}
    file = make_project(folder, samples=12, shards=SHARDS, selection=selection)
    (folder / "own").mkdir()
    shutil.copy(LETTERS, folder / "own")
    with pipeline_on(file) as pipeline:
        pipeline.refresh()
        yield pipeline


def change(pipeline: Pipeline, **selection: Any) -> set[str]:
    """Other settings of the selection; what ran for them."""
    return {asset for asset, _ in pipeline.made(selection=selection)}


def test_scores_and_tables_are_written_by_shard(project: Pipeline) -> None:
    store = project.state().store
    for asset in ("letters/long", "method_scores/letters"):
        table = store.read_all(asset, [str(shard) for shard in range(SHARDS)])
        rejected = store.read_rejected(asset, [str(shard) for shard in range(SHARDS)])
        assert sorted(table["sample_id"]) == [f"s{number:05d}" for number in range(12) if number != 1]
        assert list(rejected.iter_rows()) == [("s00001", "it is the second")]
    assert store.read("method_scores/hmg").schema == pl.Schema({"sample_id": pl.String(), "score": pl.Float64()})
    stamp = store.stamp("letters/long", "0")
    assert stamp is not None and stamp.rows is not None
    assert stamp.effort["flops"] == stamp.rows + (shard_of("s00001", SHARDS) == 0)


def test_the_methods_are_compared(project: Pipeline) -> None:
    found = MethodComparison.from_json(project.state().store.files.read("comparison.json"))
    assert (found.samples, found.chosen, found.selected_by) == (12, 4, "gateau")
    assert {facts.name: facts.scored for facts in found.methods} == {"gateau": 12, "hmg": 12, "letters": 11}
    assert found.alpha is not None and found.attention is not None
    page = project.state().store.files.read("report.html").decode()
    assert "It has many letters." in page


def test_a_changed_sample_reaches_its_shard_only(project: Pipeline) -> None:
    records = [sample(number) for number in range(12)]
    records[5]["response"] += " so"
    write_samples(project.file.parent / "long.jsonl", records)
    shard, events = str(shard_of("s00005", SHARDS)), project.made()
    for asset in ("letters/long", "method_scores/letters"):
        assert {key for key in events if key[0] == asset} == {(asset, shard)}
    assert value_of(events["letters/long", shard], "samples_computed") == 1


def test_an_edited_plugin_computes_its_own_tables_again(project: Pipeline) -> None:
    with (project.file.parent / "own" / "letters.py").open("a") as file:
        file.write("# edited\n")
    shards = {(asset, str(shard)) for asset in ("letters/long", "method_scores/letters") for shard in range(SHARDS)}
    assert {*project.made()} == shards | {("comparison", None), ("report", None)}


@pytest.mark.long
def test_worker_processes_score_with_the_plugin(project: Pipeline) -> None:
    before = project.state().store.read_all("letters/long", ["0", "1", "2"])
    change_config(project.file, scoring={"workers": 2})
    test_an_edited_plugin_computes_its_own_tables_again(project)
    assert project.state().store.read_all("letters/long", ["0", "1", "2"]).equals(before)
    change_config(project.file, scoring={"workers": 1})


def test_a_method_more_computes_only_itself(project: Pipeline) -> None:
    assert change(project, compare=["hmg", "letters", "cam"]) == {"method_scores/cam", "comparison", "report"}


def test_another_method_chooses_by_another_rule(project: Pipeline) -> None:
    ran = change(project, method="letters", rule="per_source", compare=["hmg", "cam", "gateau"])
    assert ran == {"selected_subset", "comparison", "report"}
    chosen = project.state().store.read("selected_subset")
    assert chosen["sample_id"].to_list() == ["s00011", "s00010", "s00009", "s00008"]
    assert chosen["rank"].to_list() == [1, 2, 3, 4]
    change(project, method="letters", rule="top", count=2)
    assert project.state().store.read("selected_subset")["sample_id"].to_list() == ["s00011", "s00010"]


def test_each_table_has_its_checks(project: Pipeline) -> None:
    found, whole = project.checks(), {"up_to_date", "unique_ids", "full_coverage"}
    assert found["letters/long"] == {*whole, "rejected_share"}
    assert found["method_scores/letters"] == {*whole, "finite_values"}
    assert found["comparison"] == {"up_to_date"}


def test_the_page_is_without_the_methods_that_are_gone(project: Pipeline) -> None:
    assert change(project, method="gateau", compare=[]) == {"selected_subset", "report"}
    assert "It has many letters." not in Path(project.file.parent / "store" / "report.html").read_text()
