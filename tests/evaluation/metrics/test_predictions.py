"""Our metrics beside the published code on what models answered to LongBench, in full as they said it."""

import json
import math
import sys
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

import pytest

from gateau_dagster.evaluation.benchmark import Generation, Question
from gateau_dagster.evaluation.helmet import value_of
from gateau_dagster.evaluation.longbench import SETS, answer_score
from gateau_dagster.evaluation.metrics import share_contained
from tests.evaluation import official

from .pairs import official_code

pytestmark = pytest.mark.long
_ROWS = 20
"""Of each run and data set: the published ROUGE-L takes a tenth of a second for one summary."""


def _answered(name: str, most: int = _ROWS) -> list[dict[str, Any]]:
    """The first rows of each run of a data set: `pred`, `answers`, `all_classes`."""
    rows: list[dict[str, Any]] = []
    for file in sorted(official.predictions().glob(f"*/{name}.jsonl")):
        with file.open(encoding="utf-8") as stream:
            rows += map(json.loads, islice(stream, most))
    return rows


@pytest.fixture
def deep() -> Iterator[None]:
    """The published ROUGE-L walks back by recursion, and is 0 where that ends."""
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(20_000)
    yield
    sys.setrecursionlimit(limit)


@pytest.mark.usefixtures("deep")
@pytest.mark.parametrize("name", SETS)
def test_the_published_metrics_on_what_models_answered(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By each set's metric, with the first line, the best of the right answers and the classes as there."""
    published, rows = official_code("eval", monkeypatch), _answered(name)
    assert len(rows) >= 20
    worth = []
    for row in rows:
        answer = row["pred"].lstrip("\n").split("\n")[0] if SETS[name].first_line else row["pred"]
        metric, classes = published.dataset2metric[name], row["all_classes"]
        expected = max(0.0, *(metric(answer, right, all_classes=classes) for right in row["answers"]))
        found = answer_score(name, row["pred"], row["answers"], classes or ())
        assert found == pytest.approx(expected, abs=1e-12), row
        worth.append(expected)
    assert len({*worth}) > 1


def _means(values: Sequence[float]) -> float:
    return round(100 * math.fsum(values) / len(values), 2)


@pytest.mark.parametrize("name", ["qasper", "hotpotqa", "trec", "triviaqa", "passage_retrieval_en", "lcc"])
def test_the_published_scorer_on_what_models_answered(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its mean over all rows of a run, in per cent to two places."""
    published = official_code("eval", monkeypatch)
    for file in sorted(official.predictions().glob(f"*/{name}.jsonl")):
        rows = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
        said, rights, classes = [row["pred"] for row in rows], [row["answers"] for row in rows], rows[0]["all_classes"]
        ours = [answer_score(name, *each, classes or ()) for each in zip(said, rights, strict=True)]
        assert _means(ours) == published.scorer(name, said, rights, classes), file


_SHORT = ("narrativeqa", "qasper", "multifieldqa_en", "hotpotqa", "2wikimqa", "musique", "triviaqa")


def test_helmets_metric_on_what_models_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer that holds a right one, as it came or as HELMET parses it."""
    stubs: dict[str, Any] = {"pytrec_eval": {}, "rouge_score": {"rouge_scorer": None}}
    code: Any = official.loaded(official.code("HELMET/utils.py"), monkeypatch, **stubs)
    held, rows = 0, [row for name in _SHORT for row in _answered(name)]
    for row in rows:
        question = Question(
            question_id="q",
            group="kilt_nq/8192",
            turns=("",),
            generation=Generation(max_new_tokens=20),
            references=tuple(row["answers"]),
            facts={"relevance": {}, "whole": False, "lead": "Answer:"},
        )
        theirs = max(
            code.drqa_metric_max_over_ground_truths(code.substring_exact_match_score, said, row["answers"])
            for said in (row["pred"], code.parse_output(row["pred"]))
        )
        assert value_of(question, row["pred"]) == 100.0 * theirs, row
        held += theirs
    assert len(rows) >= 300 and 0 < held < len(rows)


def test_rulers_metric_on_what_models_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    """The share of the right answers that stand in what was said."""
    code: Any = official.loaded(official.code("RULER/scripts/eval/synthetic/constants.py"), monkeypatch)
    rows = [row for name in _SHORT for row in _answered(name)]
    for row in rows:
        theirs = code.string_match_all([row["pred"]], [row["answers"]])
        assert round(100 * share_contained(row["pred"], row["answers"]), 2) == theirs, row
    assert len(rows) >= 300
