"""The selection benchmarks on untrained pairs and few samples: what they made is kept, what they lack is said."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import common_ranking
import common_selection
import kinds
import numpy as np
import polars as pl
import pytest
import selection
from kinds import KINDS as ALL_KINDS
from kinds import needs_far_context

from gateau_dagster.features.demo.prepare import KINDS as BASE_KINDS
from gateau_dagster.selection.statistics import auroc
from tests.pipeline.code_versions import raise_version

EVERY = (*BASE_KINDS, *ALL_KINDS)
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
    assert common_selection.method_scores(known, common_selection.asked(case, "length", {})).tolist() == [
        -np.inf,
        -np.inf,
        1.0,
        2.0,
        3.0,
    ]


@pytest.fixture
def sections(capsys: pytest.CaptureFixture[str]) -> Callable[..., dict[str, list[str]]]:
    """Return the printed tables by title. Two samples per kind have random scores; `best` knows the labels."""
    sources = [[kind for kind in EVERY for _ in range(2)]]
    labels = {kind: needs_far_context(kind) for kind in EVERY}
    tasks = common_ranking.tasks_of(sources, labels, kinds.groups() | kinds.counterparts(), set(EVERY))
    truth = np.array([labels[kind] for kind in sources[0]], dtype=np.float64)

    def made(names: list[str], **options: Any) -> dict[str, list[str]]:
        rng, found = np.random.default_rng(0), {}
        for name in names:
            scores = truth if name == "best" else rng.random(truth.size)
            found[name] = {
                task.name: common_ranking.measure(task, [scores], common_ranking.drawn_weights(task, draws=2))
                for task in tasks
            }
        selection.printed(found, tasks, **{"columns": ["best"], "reference": "best", "answers": {}} | options)
        blocks = [block.splitlines() for block in capsys.readouterr().out.strip().split("\n\n")]
        return {lines[0]: lines[1:] for lines in blocks}

    return made


def test_precision_fits_the_page(sections: Callable[..., dict[str, list[str]]]) -> None:
    names = ["best", *(label for label, _, _ in common_selection.candidates())]
    precision = {title: lines for title, lines in sections(names).items() if title.startswith("Precision")}
    assert len(precision) == 3
    assert max(len(line) for title, lines in precision.items() for line in (title, *lines)) <= 125
    by_group, whole, by_kind = precision.values()
    assert len(by_group) == 2 + 1 + len(names) and len(whole) == 2 + len(names)
    assert {line.split()[0] for line in by_kind[2:]} >= set(EVERY)


def test_precision_by_group(sections: Callable[..., dict[str, list[str]]]) -> None:
    found = sections(["best"])
    by_group = found["Precision in the best 10 %, 20 %, 40 %, among a group's own kinds as they come"]
    assert by_group[2].split()[2] == f"{np.mean([needs_far_context(kind) for kind in BASE_KINDS]):.2f}"
    assert by_group[3].split()[:4] == ["best", "1.00", "1.00", "1.00"]


def test_precision_of_each_share_is_in_its_column() -> None:
    report, figures = selection, np.array([[0.9, 0.1, 0.2, 0.4]])
    both = common_ranking.Figures(whole=figures, draws=figures[None])
    task = common_ranking.Task(name="all", members=[], positive=[np.array([True, False])], balanced=False)
    *_, row = report.precision_by_kind({"two_hop": both}, ["two_hop"], "m").splitlines()
    assert row.split() == [
        "two_hop",
        "far",
        "0.100",
        "(0.100-0.100)",
        "0.200",
        "(0.200-0.200)",
        "0.400",
        "(0.400-0.400)",
    ]
    *_, blind, row = report.precision_by_group({"m": {"all": both}}, [task], ["m"]).splitlines()
    assert blind.split() == ["drawn", "blindly", "0.50"] and row.split() == ["m", "0.10", "0.20", "0.40"]


def test_without_the_reference_the_best_is_shown(sections: Callable[..., dict[str, list[str]]]) -> None:
    titles = list(sections(["other", "best"], reference="not asked for"))
    assert [title.split(" by kind")[0] for title in titles if "by kind" in title][-1] == "Precision of best"
