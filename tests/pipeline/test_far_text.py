"""Where most samples fit into what theta_A is shown, nothing in them is far: told before any model runs."""

import shutil
from pathlib import Path

import pytest

from gateau_dagster.pipeline.project import load_project
from gateau_dagster.pipeline.state import State
from tests.project import change_config, make_project, sample, write_samples
from tests.tiny_models import tokenizer


def warnings(project: Path) -> list[str]:
    return [each for each in State(config=load_project(project)).warnings if "nothing in them is far" in each]


def with_sentences(folder: Path, *counts: int) -> Path:
    """A project whose samples have contexts of so many sentences; eight of them are about 64 tokens."""
    project = make_project(folder, samples=0)
    write_samples(folder / "long.jsonl", [sample(number, sentences=count) for number, count in enumerate(counts)])
    return project


@pytest.mark.parametrize(("long", "told"), [(3, True), (4, False), (8, False)])
def test_it_is_told_where_less_than_half_reach_beyond_the_window(tmp_path: Path, long: int, told: bool) -> None:
    found = warnings(with_sentences(tmp_path, *([40] * long + [2] * (8 - long))))
    assert len(found) == told
    if told:
        assert found[0].startswith("models.short sees 64 tokens at a prompt's end, which about 62 % of the samples do")


def test_tokens_are_those_of_the_models_own_tokenizer(tmp_path: Path) -> None:
    """One of 400 tokens makes three times as many of the same text."""
    project = with_sentences(tmp_path, 4, 4, 4)
    assert len(warnings(project)) == 1
    for name in ("short", "long"):
        tokenizer().save_pretrained(tmp_path / name)
    assert not warnings(project)


def test_where_theta_a_is_not_here_yet_nothing_is_said(tmp_path: Path) -> None:
    project = with_sentences(tmp_path, 2, 2)
    change_config(project, models={"short": {"path": "nobody/nothing", "context": "window", "window": 64}})
    shutil.rmtree(tmp_path / "short")
    assert not warnings(project)


def test_whoever_does_not_compare_the_pair_is_not_told(tmp_path: Path) -> None:
    project = with_sentences(tmp_path, 2, 2)
    change_config(project, selection={"method": "random"})
    assert not warnings(project)
