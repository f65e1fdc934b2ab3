"""`gateau window`: what other windows of theta_A would choose, against tables that were made with them."""

import json
from pathlib import Path
from typing import Any

import pytest

from gateau_dagster.cli.window import window_sweep
from gateau_dagster.comparison.result import WindowSweep
from gateau_dagster.pipeline.observed import state_of
from gateau_dagster.pipeline.project import load_project
from gateau_dagster.pipeline.state import State
from tests.assets.harness import pipeline_on
from tests.kit.error_codes import refused
from tests.kit.project import change_config, gateau, make_project, sample, write_samples
from tests.runs.test_kill import sharpen

RESPONSES = [sample(number + 100, sentences=4)["context"] for number in range(36)]


def short(window: int) -> dict[str, Any]:
    """The models with this window of theta_A."""
    return {"short": {"path": "short", "context": "window", "window": window}, "long": {"path": "long"}}


def swept(file: Path, *windows: int) -> tuple[State, WindowSweep]:
    """The state, and its sweep."""
    state = state_of(config=load_project(file))
    return state, window_sweep(state, windows)


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """36 samples, scored with a window of 80 tokens."""
    folder = tmp_path_factory.mktemp("window")
    file = make_project(folder, samples=36, models=short(80), selection={"evidence": True})
    records = [sample(number, sentences=12) | {"response": text} for number, text in enumerate(RESPONSES)]
    write_samples(folder / "long.jsonl", records)
    sharpen(folder / "long")
    with pipeline_on(file) as pipeline:
        pipeline.refresh("selected_subset")
    return file


def test_counts_are_those_of_tables_made_with_the_window(project: Path) -> None:
    _, sweep = swept(project, 60, 100)
    assert [point.window for point in sweep.points] == [60, 80, 100] and sweep.stored.window == 80
    assert sweep.points[1].far == sweep.stored.far > 0 and sweep.samples == 36
    assert sweep.stored.common == sweep.stored.jaccard == 1.0
    for before in (sweep.points[0], sweep.points[2]):
        change_config(project, models=short(before.window or 0))
        with pipeline_on(project) as pipeline:
            pipeline.refresh("selected_subset")
        state, now = swept(project)
        assert (now.stored.far_text, now.stored.far) == (before.far_text, before.far)
        rows = state.read("perplexity/short", ["context_tokens"]).height
        assert rows == 36 - before.too_long == 36 - now.stored.too_long
        chosen = state.read("selected_subset", ["dependency"])["dependency"]
        assert now.stored.chosen_far == chosen.is_in(["one_far", "several_far"]).sum()


def test_the_command_prints_and_draws(project: Path) -> None:
    folder = project.parent
    printed = gateau("window", "64", "--out", "windows.svg", folder=folder).stdout
    assert "stored" in printed and "64" in printed
    assert (folder / "windows.svg").read_text().startswith("<?xml")
    found = json.loads(gateau("window", "--json", "--out", "windows.png", folder=folder).stdout)
    assert (folder / "windows.png").read_bytes().startswith(b"\x89PNG")
    usual = found["stored"]["window"]
    assert [point["window"] for point in found["points"]] == [usual // 4, usual // 2, usual, 2 * usual, 4 * usual]


def test_what_does_not_follow_from_the_store_is_refused(project: Path) -> None:
    state = state_of(config=load_project(project))
    stamp = state.stamp("cam", "0")
    assert stamp is not None
    rows = state.store.read("cam", "0")
    state.store.write(rows.drop("segment_probability"), "cam", "0", stamp)
    with refused("window.probabilities", "cam, shard 0"):
        swept(project)
    state.store.write(rows, "cam", "0", stamp)
    change_config(project, selection={"preset": "paper"})
    with refused("window.ranking", "robust"):
        swept(project)
