"""The methods on real text: every setting is measured, tables are made once, and the variants start from `robust`."""

import json
from pathlib import Path
from typing import Any

import common_selection
import pytest
import real_selection
import real_selection_page
import torch
from transformers import AutoModelForCausalLM

from gateau_dagster.models.prompt import response_offsets
from tests import tiny_models
from tests.benchmarks.questions import write_questions

KINDS = ["far_one", "near", "absent"]


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = tmp_path_factory.mktemp("real")
    torch.manual_seed(1)
    config = tiny_models.model_config("llama", max_position_embeddings=4096)
    AutoModelForCausalLM.from_config(config).save_pretrained(folder / "tiny")
    tiny_models.tokenizer().save_pretrained(folder / "tiny")
    nq = write_questions(folder / "nq.jsonl")
    where = ["--nq", str(nq), "--models", str(folder / "tiny"), "--folder", str(folder / "kept")]
    what = ["--sizes", "1500/600", "--seeds", "0", "1", "--per-kind", "1", "--kinds", *KINDS]
    return [*where, *what, "--fold", "choose", "--draws", "20"]


@pytest.fixture
def measured(given: list[str], tmp_path: Path) -> dict[str, Any]:
    """What the first run writes; kept tables make it cheap after that."""
    real_selection.main([*given, "--out", str(tmp_path / "found.json")])
    return json.loads((tmp_path / "found.json").read_text())


def test_every_method_is_measured_by_kind(given: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    real_selection.main([*given, "--out", str(tmp_path / "found.json")])
    measured = json.loads((tmp_path / "found.json").read_text())
    (found,) = measured["results"].values()
    assert list(measured["results"]) == ["tiny 1500/600"]
    assert not found["not_run"] and found["samples"] == 2 * len(KINDS)
    assert {"gateau[robust]", "hmg[paper]", "cam[official]", "perplexity", "ifd", "random"} <= set(found["figures"])
    assert found["answerable"]["samples"] == 2 * 2 and "trial[all_tokens]" in found["figures"]  # it knows no answer
    for by_task in found["figures"].values():
        assert set(by_task) == {"all kinds", *KINDS}
        for figures in by_task.values():
            assert 0 <= figures["auroc"]["low"] <= figures["auroc"]["value"] <= figures["auroc"]["high"] <= 1
    printed = capsys.readouterr().out
    assert "AUROC of gateau[robust] by kind" in printed and "Precision in the best 10%" in printed


def test_what_is_kept_is_not_made_again(
    measured: dict[str, Any], given: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a model is loaded")

    monkeypatch.setattr(common_selection, "load_model", refuse)
    again = tmp_path / "again.json"
    real_selection.main([*given, "--out", str(again)])
    assert json.loads(again.read_text())["results"] == measured["results"]


def test_the_page_has_every_method_and_kind(measured: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "found.json").write_text(json.dumps(measured))
    real_selection_page.main([str(tmp_path / "found.json"), "--page", str(tmp_path / "page.md")])
    lines = (tmp_path / "page.md").read_text().splitlines()
    (found,) = measured["results"].values()
    head = next(line for line in lines if line.startswith("| AUROC |"))
    assert head.count("`") == 2 * (len(found["figures"]) - 1)  # far_gain ranks as robust
    first = f"| far_one | {found['figures'][best(found)]['far_one']['auroc']['value']:.2f} "
    assert sum(line.startswith(first) for line in lines) >= 1
    assert all(sum(line.startswith(f"| {kind} |") for line in lines) == 2 for kind in KINDS)


def test_the_figures_are_those_that_were_measured(measured: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "found.json").write_text(json.dumps(measured))
    real_selection_page.main([str(tmp_path / "found.json"), "--figures", str(tmp_path / "figures.json")])
    figures = json.loads((tmp_path / "figures.json").read_text())
    ((setting, found),) = measured["results"].items()
    assert figures["measured"] == [{name: measured[name] for name in ("settings", "machine")}]
    assert figures[setting]["answerable"]["samples"] == 4 and [*figures[setting]["auroc"]] == [*found["figures"]]
    near = found["figures"]["length"]["near"]["auroc"]
    assert figures[setting]["auroc"]["length"]["near"] == [round(near[name], 4) for name in ("value", "low", "high")]


def best(found: dict[str, Any]) -> str:
    """The first column."""
    return max(
        (label for label in found["figures"] if label != "far_gain"),
        key=lambda label: found["figures"][label]["all kinds"]["auroc"]["value"],
    )


def test_what_theta_a_sees_may_differ_from_the_window_of_the_labels(given: list[str]) -> None:
    contexts = ["--contexts", "window", "full", "300", "base:5000"]
    found = real_selection.cases_by_setting(real_selection.parse([*given, *contexts]))
    sights = {setting: cases[0].config().models["short"] for setting, cases in found.items()}
    assert [(each.context, each.window, each.rope_theta) for each in sights.values()] == [
        ("window", 600, None), ("full", None, None), ("window", 300, None), ("full", None, 5000)
    ]  # fmt: skip
    assert list(sights)[1:] == [f"tiny 1500/600, theta_A {seen}" for seen in contexts[2:]]
    assert all(cases[0].records() == found["tiny 1500/600"][0].records() for cases in found.values())


def test_an_answer_s_probability_is_that_of_its_tokens_in_the_best_context(given: list[str]) -> None:
    (cases,) = real_selection.cases_by_setting(real_selection.parse(given)).values()
    known = common_selection.Tables(cases[0])
    found = real_selection.answer_probabilities(known, cases[0])
    tokenizer = tiny_models.tokenizer()
    tables = {row["sample_id"]: row for row in known["cam"].join(known["perplexity/long"], on="sample_id").to_dicts()}
    for record, sample, value in zip(real_selection._labelled(cases[0]), known.samples, found, strict=True):
        row = tables[sample.sample_id]
        best = [
            max(each)
            for each in zip(row["token_probability"], row["near_probability"], row["far_probability"], strict=True)
        ]
        marks = ["." for _ in sample.response]
        for begin, end in record["answers"][:1] or [(0, 0)]:
            answer = record["context"][begin:end] or sample.response
            place = sample.response.index(answer)
            marks[place : place + len(answer)] = "x" * len(answer)
        offsets = response_offsets(tokenizer, sample, "gateau")
        counted = [p for (begin, end), p in zip(offsets, best, strict=True) if "x" in marks[begin:end]]
        assert value == pytest.approx(sum(counted) / len(counted))
