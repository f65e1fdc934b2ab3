"""The comparison: it reads what is wanted and nothing beside, and counts what was really chosen."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from gateau_dagster.assets.comparison import compared as compared_now
from gateau_dagster.comparison.result import MethodComparison
from gateau_dagster.config import Config
from gateau_dagster.pipeline.observed import state_of
from gateau_dagster.pipeline.selection_reads import comparison_reads
from gateau_dagster.pipeline.state import State
from gateau_dagster.progress import silent
from gateau_dagster.storage import Stamp
from tests.assets.harness import Pipeline, pipeline_on, value_of
from tests.kit.project import make_project

IDS = [f"s{number:02d}" for number in range(20)]


def opened(folder: Path, method: str, **selection: Any) -> State:
    """A store that holds exactly what the comparison says it reads: all samples scored, 7 of 20 chosen."""
    content = {
        "storage": {"root": str(folder)},
        "long_sft": {"path": "long.jsonl", "shards": 1},
        "models": {"short": {"path": "a/short", "context": "window", "window": 64}, "long": {"path": "a/long"}},
        "selection": {"method": method, "compare": ["random"], **selection},
        "training": {"enabled": False},
    }
    state = state_of(config=Config.model_validate(content))
    ids = pl.DataFrame({"sample_id": IDS})
    known = {
        "raw_long_sft": ids.with_columns(source=pl.lit("a")),
        "perplexity/long": ids.with_columns(context_tokens=200, response_tokens=9, perplexity=1.5),
        "cam": ids.with_columns(segment_attention=pl.lit([0.25, 0.5], pl.List(pl.Float32))),
        "selected_subset": ids.head(7),
    }
    for asset in comparison_reads(state.config):
        table = known.get(asset, ids.with_columns(score=pl.int_range(20).cast(pl.Float64)))
        state.store.write(table, asset, None if asset == "selected_subset" else "0", Stamp(fingerprint="f"))
    return state


def found_in(state: State) -> MethodComparison:
    return MethodComparison.from_json(compared_now(state, silent).to_json())


def test_attention_is_studied_where_both_of_its_tables_are_wanted(tmp_path: Path) -> None:
    with_both = found_in(opened(tmp_path / "both", "far_gain"))
    assert with_both.attention is not None and with_both.attention.samples == len(IDS)
    with_cam = found_in(opened(tmp_path / "cam", "far_gain_fg"))
    assert (with_cam.attention, with_cam.everything.context_tokens) == (None, None)


@pytest.mark.parametrize("rule", [{}, {"count": 9}, {"rule": "token_budget", "budget": 1500}])
def test_as_many_as_are_chosen_are_those_of_the_subset(tmp_path: Path, rule: dict[str, Any]) -> None:
    found = found_in(opened(tmp_path, "far_gain", **rule))
    assert found.chosen == found.pairs[0].overlaps[-1].wanted == 7


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pipeline]:
    """8 samples in a shard, by a method that reads `cam` and nothing else of a model."""
    selection = {"method": "far_gain_fg", "compare": ["random"]}
    file = make_project(tmp_path_factory.mktemp("comparison"), samples=8, shards=1, selection=selection)
    with pipeline_on(file) as pipeline:
        yield pipeline


def compared(project: Pipeline, **sections: Any) -> tuple[set[str], MethodComparison]:
    """What is made for the comparison after a change of the configuration, and what it finds."""
    made = project.made("comparison", **sections)
    ran = {asset for (asset, _), event in made.items() if value_of(event, "up_to_date") is None}
    return ran, MethodComparison.from_json(project.state().store.files.read("comparison.json"))


@pytest.mark.long
def test_a_table_of_other_settings_that_nobody_wants_is_not_read(project: Pipeline) -> None:
    changed = {"method": "far_gain_fg", "compare": ["random"], "rule": "top", "budget": None, "count": 3}
    ran, found = compared(project, scoring={"max_length": 40}, selection=changed)
    assert "cam" in ran and "perplexity/long" not in ran
    assert project.state().store.stamp("perplexity/long", "0") is not None
    assert found.attention is None and found.everything.context_tokens is None


@pytest.mark.long
def test_another_rule_that_takes_the_same_samples_changes_nothing(project: Pipeline) -> None:
    chosen = {"method": "gateau", "compare": ["hmg"], "count": None, "rule": "token_budget", "budget": 200}
    before = compared(project, selection=chosen)[1]
    ran, found = compared(project, selection={"rule": "top", "budget": None, "count": before.chosen})
    assert (ran, found) == ({"selected_subset"}, before)
