"""The methods on real text: every setting is measured, and tables are made once."""

import json
import re
from pathlib import Path
from typing import Any

import common_selection
import figures
import pytest
import real_selection

from gateau_dagster.models.prompt import response_offsets
from tests.benchmarks.questions import write_questions
from tests.kit import tiny_models
from tests.kit.project import write_model

KINDS = ["far_one", "near", "absent"]


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = tmp_path_factory.mktemp("real")
    write_model(folder / "tiny", seed=1, window=4096, tokenizer=tiny_models.tokenizer())
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
    assert found["answerable"]["samples"] == 2 * 2  # it knows no answer
    for by_task in found["figures"].values():
        assert set(by_task) == {"all kinds", *KINDS}
        for estimates in by_task.values():
            low, value, high = (estimates["auroc"][name] for name in ("low", "value", "high"))
            assert 0 <= low <= value <= high <= 1
    assert found["difference"]["gateau[robust]"] == {"value": 0.0, "low": 0.0, "high": 0.0}
    gap = (
        found["figures"]["random"]["all kinds"]["auroc"]["value"]
        - found["figures"]["gateau[robust]"]["all kinds"]["auroc"]["value"]
    )
    assert found["difference"]["random"]["value"] == pytest.approx(gap)
    printed = capsys.readouterr().out
    assert "AUROC of gateau[robust] by kind" in printed and "Precision in the best 10%" in printed


def test_dependencies_are_counted_by_the_places_of_the_passages(measured: dict[str, Any]) -> None:
    (found,) = measured["results"].values()
    counts = found["dependency"]["counts"]
    totals = {wanted: sum(of.values()) for wanted, of in counts.items()}
    assert totals == {"one_far": 2, "near": 2, "closed_book": 2, "several_far": 0, "unpredictable": 0}
    assert found["dependency"]["passages"][1] == 4  # of far_one and near, in two seeds
    hit, spans = (found["dependency"][name] for name in ("passages", "spans"))
    assert 0 <= hit[0] <= hit[1] and 0 <= spans[0] <= spans[1]


def test_what_is_kept_is_not_made_again(
    measured: dict[str, Any], given: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a model is loaded")

    monkeypatch.setattr(common_selection, "load_model", refuse)
    cached = (real_selection._tables, real_selection._measured_alone, real_selection.dependency_agreement)
    for each in (*cached, real_selection.answer_probabilities):
        each.cache_clear()
    again = tmp_path / "again.json"
    real_selection.main([*given, "--out", str(again)])
    assert json.loads(again.read_text())["results"] == measured["results"]


def test_its_figures_fill_the_pages(measured: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "real_report.json").write_text(json.dumps(measured))
    assert figures.keep(tmp_path, tmp_path / "kept") == ["real_report.json"]
    tables = [name for name, (files, _) in figures.TABLES.items() if files == ("real_text",)]
    page = "".join(f"<!-- figures: {name} -->\n\n<!-- end of figures -->\n" for name in tables)
    text = figures.written(page, tmp_path / "kept")
    ((_, result),) = measured["results"].items()
    value = result["figures"]["gateau[robust]"]["far_one"]["auroc"]["value"]
    assert re.search(rf"^\| `far_one`: [\w ]+ \| yes \| {value:.2f} \(", text, re.MULTILINE)
    assert all(re.search(rf"^\| {kind} \|", text, re.MULTILINE) for kind in KINDS)


def test_models_are_also_measured_together(given: list[str]) -> None:
    place = given.index("--models") + 1
    two = [*given[:place], "a/one", "b/two", *given[place + 1 :]]
    found = real_selection.cases_by_setting(real_selection.parse(two))
    assert list(found) == ["one 1500/600", "two 1500/600", "all models 1500/600"]
    assert found["all models 1500/600"] == found["one 1500/600"] + found["two 1500/600"]
    sizes = real_selection.cases_by_setting(real_selection.parse([*two, "--sizes", "1500/600", "900/300"]))
    assert list(sizes)[-1] == "all models, all sizes"
    assert sizes["all models, all sizes"] == sizes["all models 1500/600"] + sizes["all models 900/300"]


def test_an_answer_s_probability_is_that_of_its_tokens_in_the_best_context(given: list[str]) -> None:
    (cases,) = real_selection.cases_by_setting(real_selection.parse(given)).values()
    known = common_selection.Tables(cases[0])
    found = real_selection.answer_probabilities(cases[0])
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
