"""`gateau show`: ranks, figures and evidence of a sample as the tables of a finished run have them."""

import re
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from gateau_dagster.cli.show import print_sample, print_top
from gateau_dagster.errors import GateauError
from gateau_dagster.pipeline.observed import state_of
from gateau_dagster.pipeline.project import load_project
from gateau_dagster.pipeline.state import State
from gateau_dagster.readable import number
from gateau_dagster.selection.presets import with_terms
from tests.kit.error_codes import refused
from tests.kit.project import change_config, make_project

Capture = pytest.CaptureFixture[str]
RANK = 3


@pytest.fixture
def state(whole_run: Path) -> State:
    return state_of(config=load_project(whole_run))


@pytest.fixture
def third(state: State) -> dict[str, Any]:
    """Scores and texts of the third sample of the ranking."""
    scores = state.read("combined_scores").row(RANK - 1, named=True)
    [texts] = state.read("raw_long_sft").filter(sample_id=scores["sample_id"]).iter_rows(named=True)
    return {**texts, **scores}


def printed(state: State, capfd: Capture, name: str, method: str | None = None) -> str:
    """On one line."""
    print_sample(state.config, name, method)
    return re.sub(r"\s+", " ", capfd.readouterr().out)


def test_ranks_scores_and_texts(state: State, third: dict[str, Any], capfd: Capture) -> None:
    found = printed(state, capfd, third["sample_id"])
    assert found.startswith(f"{third['sample_id']} source {third['source']}")
    assert f"rank {RANK} of 36 by gateau, score {number(third['score'])}" in found
    table = with_terms(state.read("combined_scores"), "robust").row(RANK - 1, named=True)
    first, second = number(table["hmp_term"]), number(table["cas_term"])
    assert f"0.5 · long-model gain {first} + 0.5 · far-segment gain {second} = " in found
    for preset in ("paper", "official"):
        assert f"gateau, preset {preset} {third[f'rank_{preset}']} of 36 {number(third[f'score_{preset}'])}" in found
    for column in ("perplexity_short", "perplexity_long", "hmp"):
        assert f"{column} {number(third[column])}" in found
    for part in ("instruction", "response"):
        assert " ".join(third[part].split()) in found
    assert ("not selected" in found) == (third["sample_id"] not in state.read("selected_subset")["sample_id"])


def test_the_evidence_of_its_tokens_and_segments(state: State, third: dict[str, Any], capfd: Capture) -> None:
    found = printed(state, capfd, third["sample_id"])
    [cam] = state.read("cam").filter(sample_id=third["sample_id"]).iter_rows(named=True)
    assert f"{cam['segments']} segments" in found
    last = cam["segments"] - 1
    assert f"segment {last + 1}, near, gave {number(cam['segment_gain'][last])}" in found
    gains = [far - near for far, near in zip(cam["far_probability"], cam["near_probability"], strict=True)]
    assert all(f"{gain:.3f}" in found for gain in gains if gain >= 0.01)


@pytest.mark.parametrize(("name", "method", "message"), [("nobody", None, "nobody"), ("s00003", "ladm", "gateau")])
def test_what_is_not_there_is_said(state: State, name: str, method: str | None, message: str) -> None:
    with pytest.raises(GateauError, match=message):
        print_sample(state.config, name, method)


def test_the_best_samples(state: State, third: dict[str, Any], capfd: Capture) -> None:
    print_top(state.config, RANK, None)
    lines = [line.split() for line in capfd.readouterr().out.splitlines()]
    assert lines[-1] == [str(RANK), third["sample_id"], number(third["score"])]
    assert [line[0] for line in lines[-RANK:]] == ["1", "2", "3"] and lines[-RANK - 1] == ["rank", "sample", "score"]
    with refused("show.method", match="'nobody'"):
        print_top(state.config, RANK, "nobody")


def test_what_is_out_of_date_is_said(whole_run: Path, third: dict[str, Any], tmp_path: Path, capfd: Capture) -> None:
    file = shutil.copytree(whole_run.parent, tmp_path / "project") / "gateau.yaml"
    name = third["sample_id"]
    shown = {"top": partial(print_top, count=2, method=None), "sample": partial(print_sample, name=name, method=None)}
    for show in shown.values():
        show(load_project(file), require_current=True)
    assert "out of date" not in capfd.readouterr().out
    change_config(file, selection={"fraction": 0.5})
    shown["top"](load_project(file), require_current=True)
    assert "out of date" not in capfd.readouterr().out, "the scores are those of the configuration"
    shown["sample"](load_project(file))
    assert "selected_subset is out of date" in re.sub(r"\s+", " ", capfd.readouterr().out)
    change_config(file, selection={"alpha": 0.3})
    shown["top"](load_project(file))
    assert "combined_scores is out of date" in re.sub(r"\s+", " ", capfd.readouterr().out)
    for show in shown.values():
        with refused("storage.out_of_date", "combined_scores"):
            show(load_project(file), require_current=True)


def test_before_the_first_run(tmp_path: Path) -> None:
    config = load_project(make_project(tmp_path, samples=2, shards=1))
    with refused("storage.not_computed", match="gateau run"):
        print_sample(config, "s00000", None)
    with refused("storage.not_computed", match="gateau run"):
        print_top(config, 10, None)


def test_a_sample_is_shown_while_a_method_that_reads_spans_has_no_table_yet(
    state: State, third: dict[str, Any], capfd: Capture
) -> None:
    options = {"delta_perplexity": {"segment_length": 16}}
    selection = state.config.selection.model_copy(update={"compare": ["delta_perplexity"], "options": options})
    later = state_of(config=state.config.model_copy(update={"selection": selection}))
    assert "near, gave" in printed(later, capfd, third["sample_id"])


def test_by_a_method_s_own_measure(state: State, third: dict[str, Any], capfd: Capture) -> None:
    selection = state.config.selection.model_copy(update={"preset": "paper"})
    paper = state_of(config=state.config.model_copy(update={"selection": selection}))
    assert "By gateau what each stretch of the context adds to CAS" in printed(paper, capfd, third["sample_id"])
    assert "what each stretch" not in printed(state, capfd, third["sample_id"])
