"""The selection benchmarks on untrained pairs and few samples: what they made is kept, what they lack is said."""

import json
from pathlib import Path

import common_ranking
import common_selection
import numpy as np
import polars as pl
import pytest
import selection
from kinds import needs_far_context

from gateau_dagster.selection.statistics import auroc
from tests.pipeline.code_versions import raise_version

KINDS = "far_count_1 near_count_1 two_hop"
FEW = f"--tiny --per-kind 1 --base 5 --segment-length 64 --kinds {KINDS}".split()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pairs and tables that the tests share, as runs do."""
    return tmp_path_factory.mktemp("selection")


def options(folder: Path, *more: str) -> list[str]:
    return [*FEW, "--folder", str(folder), *more]


def test_methods_are_scored_on_kept_tables(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "found.json"
    wanted = ["--methods", "gateau", "random", "length", "car", "--draws", "20", "--out", str(file)]
    assert selection.main(options(folder, "--seeds", "0", "1", *wanted)) == 0
    first, found = capsys.readouterr(), json.loads(file.read_text())
    assert "cam of 8 samples" in first.err and "AUROC by kind" in first.out
    assert "Precision of gateau[robust] by kind" in first.out
    better = {each["method"] for each in found["better_than_reference"]}
    assert "better than gateau[robust]" in first.out and better <= set(found["methods"]) - {"gateau[robust]"}
    assert set(found["methods"]) == {"gateau[paper]", "gateau[official]", "gateau[robust]", "random", "length"}
    assert "reward" in found["not_run"]["car"] and "car" in first.out
    assert set(found["kinds"]) == {*KINDS.split(), "no_context", "near_fact", "far_fact", "far_facts", "noisy"}
    assert not found["kinds"]["two_hop"]["within_reach"]
    for figures in found["methods"].values():
        assert {"base", "controlled", "within reach", "all", *found["kinds"]} <= set(figures)
        assert all(0 <= each["low"] <= each["high"] <= 1 for each in figures["all"].values())
    assert selection.main(options(folder, "--seeds", "0", "1", *wanted)) == 0
    again = capsys.readouterr()
    assert "of 8 samples" not in again.err
    assert again.out[again.out.index("AUROC of") :] == first.out[first.out.index("AUROC of") :]


def test_only_what_a_configuration_lacks_is_not_run(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    case = selection.Case(folder=folder, pair_seed=0, data_seed=1000, per_kind=0, base=5, untrained=True)
    known = common_selection.Tables(case)
    scores, missing = selection.scores_of([known], ["length", "car"])
    assert list(scores) == ["length"] and list(missing) == ["car"]

    def fails(*given: object) -> None:
        raise ValueError("a defect of the method")

    monkeypatch.setattr(common_selection.Method, "scores", fails)
    with pytest.raises(ValueError, match="a defect of the method"):
        selection.scores_of([known], ["length"])


def test_where_the_reference_loses_is_said() -> None:
    labels = np.arange(40) < 20
    task = common_ranking.Task(name="k", members=[np.arange(40)], positive=[labels], balanced=False)
    good, bad = np.where(labels, 1.0, 0.0), np.arange(40) % np.float64(2)
    weights = common_ranking.drawn_weights(task, draws=50)
    found = {name: {"k": common_ranking.measure(task, [each], weights)} for name, each in (("a", good), ("b", bad))}
    (only,) = selection.losses(found, "b")
    assert (only["task"], only["method"], only["difference"].value) == ("k", "a", 0.5)
    *_, line = selection.lost([only], found, "b").splitlines()
    assert line.split()[:3] == ["k", "a", "1.000"] and " 0.500 (" in line
    assert selection.losses(found, "a") == selection.losses(found, "absent") == []


def test_a_methods_figure_is_that_of_its_scores(folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "found.json"
    selection.main(options(folder, "--seeds", "0", "--methods", "length", "--draws", "5", "--out", str(file)))
    case = selection.Case(
        folder=folder, pair_seed=0, data_seed=1000, per_kind=1, base=5, segment_length=64,
        kinds=tuple(KINDS.split()), untrained=True,
    )  # fmt: skip
    records = case.records()
    lengths = [len(f"{record['context']}{record['response']}".encode()) for record in records]
    expected = auroc(lengths, [needs_far_context(record["source"]) for record in records])
    assert json.loads(file.read_text())["methods"]["length"]["all"]["auroc"]["value"] == pytest.approx(expected)


@pytest.mark.long
def test_tables_of_other_code_are_made_anew(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    case = selection.Case(folder=folder, pair_seed=0, data_seed=1001, per_kind=0, base=2, untrained=True)
    selection.ready_pair(case)
    names = ("perplexity/short", "perplexity/long", "cam")

    def made() -> set[str]:
        known = common_selection.Tables(case)
        for name in names:
            assert known[name].height == 2
        printed = capsys.readouterr().err
        return {name for name in names if f"{name} of 2 samples" in printed}

    made()
    assert made() == set()
    raise_version(monkeypatch, "gateau_dagster.scoring.pair_tables.CAM_CODE_VERSION")
    assert made() == {"cam"}
    raise_version(monkeypatch, "gateau_dagster.scoring.pair_tables.PERPLEXITY_CODE_VERSION")
    assert made() == {"perplexity/short", "perplexity/long"}


def test_a_sample_without_a_score_comes_last(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    case = selection.Case(folder=folder, pair_seed=0, data_seed=1000, per_kind=0, base=5, untrained=True)
    known = common_selection.Tables(case)
    ids = [record["id"] for record in known.records]
    found = pl.DataFrame({"sample_id": ids[1:], "score": [None, 1.0, 2.0, 3.0]})
    monkeypatch.setattr(common_selection.Method, "scores", lambda *given: found)
    scores = common_selection.method_scores(known, common_selection.asked(case, "length", {}))
    assert scores.tolist() == [-np.inf, -np.inf, 1.0, 2.0, 3.0]


def test_precision_of_each_share_is_in_its_column() -> None:
    figures = np.array([[0.9, 0.1, 0.2, 0.4]])
    both = common_ranking.Figures(whole=figures, draws=figures[None])
    task = common_ranking.Task(name="all", members=[], positive=[np.array([True, False])], balanced=False)
    *_, row = selection.precision_by_kind({"two_hop": both}, ["two_hop"], "m").splitlines()
    shown = [f"{value:.3f} ({value:.3f}-{value:.3f})" for value in (0.1, 0.2, 0.4)]
    assert row.split() == ["two_hop", "far", *" ".join(shown).split()]
    *_, blind, row = selection.precision_by_group({"m": {"all": both}}, [task], ["m"]).splitlines()
    assert blind.split() == ["drawn", "blindly", "0.50"] and row.split() == ["m", "0.10", "0.20", "0.40"]
