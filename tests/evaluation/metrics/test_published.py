"""Every metric against what the published code gives: a table of its values, and the code where it is at hand."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from gateau_dagster.evaluation.longbench import answer_score
from gateau_dagster.evaluation.metrics import (
    chinese_f1,
    chinese_rouge_l,
    class_share,
    line_similarity,
    number_share,
    passage_share,
    rouge_l,
    word_f1,
)

from .pairs import CLASSES, VALUES, made_pairs, official_code

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


def _known() -> list[dict[str, Any]]:
    return json.loads(VALUES.read_text(encoding="utf-8"))


@pytest.mark.parametrize("metric", OURS)
def test_the_published_values(metric: str) -> None:
    if "zh" in metric and metric != "retrieval_zh_score":
        pytest.importorskip("jieba", reason="Chinese words need jieba")
    known = [each for each in _known() if each["metric"] == metric]
    assert len(known) >= 2 and len({each["value"] for each in known}) > 1
    for each in known:
        assert OURS[metric](each["answer"], each["right"]) == pytest.approx(each["value"], abs=1e-12), each


def test_the_table_is_of_these_pairs() -> None:
    assert [(each["metric"], each["answer"], each["right"]) for each in _known()] == [*made_pairs()]


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
