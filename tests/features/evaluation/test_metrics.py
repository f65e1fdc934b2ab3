"""Metrics against slow twins, against a table of values of the published code, and against that code."""

import itertools
import json
import math
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from gateau_dagster.features.evaluation.benchmark import Generation, Question
from gateau_dagster.features.evaluation.benchmarks.helmet import value_of
from gateau_dagster.features.evaluation.benchmarks.longbench import SETS, answer_score
from gateau_dagster.features.evaluation.grading import (
    chinese_f1,
    chinese_rouge_l,
    class_share,
    common_subsequence,
    f1,
    line_similarity,
    ndcg,
    number_share,
    passage_share,
    ranked_ids,
    rouge_l,
    share_contained,
    word_f1,
)
from tests.features.evaluation import official

VALUES = Path(__file__).with_name("official_values.json")
"""`metric`, `answer`, `right`, `value`; made again by `python -m tests.features.evaluation.test_metrics`."""
KNOWN: list[dict[str, Any]] = json.loads(VALUES.read_text(encoding="utf-8"))
CLASSES = ["Food", "Food additive", "Date", "Dates of history", "Body part", "Body", "Colour"]


def official_code(name: str, patch: pytest.MonkeyPatch) -> ModuleType:
    """The published `name`.py from where it lies; without it, or what it needs, the test is skipped."""
    for package in ("jieba", "fuzzywuzzy", "rouge"):
        pytest.importorskip(package, reason=f"the published metrics need {package}")
    metrics = official.loaded(official.code("LongBench/LongBench/metrics.py"), patch)
    patch.setitem(sys.modules, "metrics", metrics)
    return metrics if name == "metrics" else official.loaded(official.code(f"LongBench/LongBench/{name}.py"), patch)


# The metrics against slow twins, by the definitions of F1 and of the longest common subsequence.


def _slow_f1(answer: list[str], right: list[str]) -> float:
    left = list(right)
    shared = sum(1 for word in answer if word in left and not left.remove(word))
    return 2 * shared / (len(answer) + len(right))


def test_f1_counts_each_word_as_often_as_both_hold_it() -> None:
    rng = random.Random(0)
    for _ in range(100):
        answer, right = (rng.choices("abcde", k=rng.randint(1, 9)) for _ in range(2))
        assert f1(answer, right) == pytest.approx(_slow_f1(answer, right), abs=1e-12)
    assert f1([], ["a"]) == f1(["a"], []) == f1(["a"], ["b"]) == 0


def _longest(first: list[str], second: list[str]) -> int:
    subsequences = ([*part] for size in range(len(first), -1, -1) for part in itertools.combinations(first, size))
    return next(len(part) for part in subsequences if _within(part, second))


def _within(part: list[str], whole: list[str]) -> bool:
    rest = iter(whole)
    return all(word in rest for word in part)


def test_a_common_subsequence_is_one_and_none_is_longer() -> None:
    rng = random.Random(1)
    for _ in range(60):
        first, second = (rng.choices("abcd", k=rng.randint(0, 8)) for _ in range(2))
        found = common_subsequence(first, second)[::-1]
        assert _within(found, first) and _within(found, second) and len(found) == _longest(first, second)


def test_rouge_l_of_sentences() -> None:
    # Of the reference's first sentence "a b" is found, of the second "d": 3 of its 5 words, 3 of the answer's 4.
    assert rouge_l("a b x. d.", "a b c. e d.") == pytest.approx(2 * 0.6 * 0.75 / 1.35, abs=1e-7)
    assert rouge_l("same words here", "same words here") == pytest.approx(1, abs=1e-7)
    assert rouge_l("", "a") == rouge_l("a", "...") == 0
    long = [str(number) for number in range(1100)]
    assert rouge_l(" ".join(long), " ".join(long)) == pytest.approx(1, abs=1e-7)


# Every metric against what the published code gives: a table of its values, and the code where it is at hand.


OURS: dict[str, Callable[[str, str], float]] = {
    "qa_f1_score": word_f1,
    "rouge_score": rouge_l,
    "qa_f1_zh_score": chinese_f1,
    "rouge_zh_score": chinese_rouge_l,
    "count_score": number_share,
    "retrieval_score": passage_share,
    "retrieval_zh_score": passage_share,
    "code_sim_score": line_similarity,
    "classification_score": lambda answer, right: class_share(answer, right, CLASSES),
}


@pytest.mark.parametrize("metric", OURS)
def test_the_published_values(metric: str) -> None:
    if "zh" in metric and metric != "retrieval_zh_score":
        pytest.importorskip("jieba", reason="Chinese words need jieba")
    known = [each for each in KNOWN if each["metric"] == metric]
    assert len(known) >= 2 and len({each["value"] for each in known}) > 1
    for each in known:
        assert OURS[metric](each["answer"], each["right"]) == pytest.approx(each["value"], abs=1e-12), each


@pytest.mark.long
def test_the_published_scorer_on_made_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its mean over a set, in per cent to two places: first lines and best of several as there."""
    published = official_code("eval", monkeypatch)
    for name in ("trec", "triviaqa", "samsum", "hotpotqa"):
        said = ["\n\nFood\nnot this", "Date of birth", "Body part"]
        rights = [["Food", "Body"], ["Dates of history", "Date"], ["Body part"]]
        wanted = published.scorer(name, said, rights, CLASSES)
        ours = [answer_score(name, answer, right, CLASSES) for answer, right in zip(said, rights, strict=True)]
        assert round(100 * sum(ours) / len(ours), 2) == wanted and wanted > 0


# Rankings in answers: how they are read, beside HELMET's reader where that is, and what they are worth.


ANSWERS = [
    "Ranking: [ID: 3] > [ID: 1] > [ID: 12]",
    "ID7 > ID2\nand ID1 > ID4 > ID9",
    "5",
    "3 > 1 > 3 > 2",
    "first 12, then 4>5 >6",
]


def test_the_longest_ranking_is_read() -> None:
    found = [ranked_ids(answer) for answer in ANSWERS]
    assert found == [["3", "1", "12"], ["1", "4", "9"], ["5"], ["3", "1", "2"], ["4", "5", "6"]]
    assert ranked_ids("none") == ranked_ids("") == []


def test_rankings_are_helmet_s(monkeypatch: pytest.MonkeyPatch) -> None:
    stubs: dict[str, Any] = {"pytrec_eval": {}, "rouge_score": {"rouge_scorer": None}}
    code: Any = official.loaded(official.code("HELMET/utils.py"), monkeypatch, **stubs)
    rng = random.Random(3)
    pieces = ["ID", "id: ", "[", "]", " > ", ">", "1", "23", "4", "\n", " ", "Ranking: ", ","]
    for answer in [*ANSWERS, *("".join(rng.choices(pieces, k=rng.randint(1, 25))) for _ in range(500))]:
        theirs = code.parse_rankings(answer)
        numbers = [each for each in sorted(theirs, key=theirs.__getitem__, reverse=True) if each.isdigit()]
        assert ranked_ids(answer) == numbers, answer


def test_ndcg_is_the_gain_over_that_of_the_best_order() -> None:
    relevance = {"a": 3, "b": 0, "c": 1, "d": 2}
    best = max(
        sum(relevance[each] / math.log2(place + 2) for place, each in enumerate(order[:3]))
        for order in itertools.permutations(relevance)
    )
    found = ndcg(["c", "x", "a", "d"], relevance, depth=3)
    assert found == pytest.approx((1 / math.log2(2) + 3 / math.log2(4)) / best)
    assert ndcg(["a", "d", "c"], relevance, depth=10) == pytest.approx(1)
    assert ndcg(["a"], {"a": 0}, depth=10) == 0


# Our metrics beside the published code on what models answered to LongBench, in full as they said it.


_ROWS = 20
"""Answers of each run and data set: the published ROUGE-L takes a tenth of a second for one summary."""


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
@pytest.mark.long
def test_the_published_metrics_on_what_models_answered(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Grade by each set's metric, with its first line, the best of the right answers and its classes."""
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
@pytest.mark.long
def test_the_published_scorer_on_what_models_answered(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its mean over all rows of a run, in per cent to two places."""
    published = official_code("eval", monkeypatch)
    for file in sorted(official.predictions().glob(f"*/{name}.jsonl")):
        rows = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
        said, rights, classes = [row["pred"] for row in rows], [row["answers"] for row in rows], rows[0]["all_classes"]
        ours = [answer_score(name, *each, classes or ()) for each in zip(said, rights, strict=True)]
        assert _means(ours) == published.scorer(name, said, rights, classes), file


_SHORT = ("narrativeqa", "qasper", "multifieldqa_en", "hotpotqa", "2wikimqa", "musique", "triviaqa")


@pytest.mark.long
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


@pytest.mark.long
def test_rulers_metric_on_what_models_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    """The share of the right answers that stand in what was said."""
    code: Any = official.loaded(official.code("RULER/scripts/eval/synthetic/constants.py"), monkeypatch)
    rows = [row for name in _SHORT for row in _answered(name)]
    for row in rows:
        theirs = code.string_match_all([row["pred"]], [row["answers"]])
        assert round(100 * share_contained(row["pred"], row["answers"]), 2) == theirs, row
    assert len(rows) >= 300


if __name__ == "__main__":
    with pytest.MonkeyPatch.context() as patch:
        published = official_code("metrics", patch)
        for each in KNOWN:
            each["value"] = getattr(published, each["metric"])(each["answer"], each["right"], all_classes=CLASSES)
        VALUES.write_text(json.dumps(KNOWN, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
