"""Answers and right answers made up for each metric, what they are worth by the published code, and that code."""

import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.evaluation import official

VALUES = Path(__file__).with_name("official_values.json")
"""`metric`, `answer`, `right`, `classes`, `value`; made by `python -m tests.evaluation.metrics.pairs`."""

CLASSES = ["Food", "Food additive", "Date", "Dates of history", "Body part", "Body", "Colour"]
_ENGLISH = [
    ("The Eiffel Tower, in Paris.", "eiffel tower"),
    ("It was a man who said: an apple a day.", "A man said an apple a day"),
    ("blue blue blue green", "blue green green"),
    ("no overlap whatever", "something else"),
    ("", "nothing was said"),
    ("the a an", "the"),
    ("U.S.A. in the 1990's", "USA 1990s"),
    ("café déjà-vu", "Café deja vu"),
]
_SUMMARIES = [
    ("The board met. It raised the fee. Nobody objected.", "The board raised the fee. Two members objected."),
    ("one two three four five six", "two four six one three five"),
    ("a b c d e. f g h. a b.", "b a c e d. h g f. c d."),
    ("...", "a sentence."),
    ("word", ""),
    (" . a . ", "a. . b"),
    ("Prices rose by 3.5 percent. Wages did not.", "Prices rose by 3.5 percent while wages fell by 1.2 percent."),
    ("x y x y x", "y x y x y x"),
]
_CHINESE = [
    ("北京是中国的首都。", "中国的首都是北京"),
    ("他在1998年出生于上海，后来去了英国。", "1998年，上海"),
    ("会议讨论了明年的预算和人员安排。", "会议的主题：明年预算；人员。"),
    ("", "没有答案"),
    ("《红楼梦》的作者是曹雪芹！", "曹雪芹（约1715年－约1763年）"),
]
_NUMBERS = [("There are 5 of 10 passages, so 5", "5"), ("no number", "3"), ("12 and 1 and 2", "2"), ("", "1")]
_PASSAGES = [("Paragraph 7", "Paragraph 7"), ("7 or 12, perhaps 7", "Paragraph 7"), ("none", "Paragraph 1")]
_CHINESE_PASSAGES = [("段落3", "段落3"), ("是段落13，不是段落3", "段落3")]
_LINES = [
    ("\n\nreturn a + b\n# done", "return a + b"),
    ("```python\n# sum\nx = total(values)\n", "x = sum(values)"),
    ("// only\n# comments", "int x = 0;"),
    ("", ""),
    ("for i in range(10):", "for index in range(len(items)):"),
    ("a" * 300 + "b" * 20, "b" * 20 + "a" * 280),
]
_NAMED = [
    ("Food", "Food"),
    ("Food additive", "Food additive"),
    ("It may be Food additive, a Dates of history or Body part", "Dates of history"),
    ("Body part", "Body part"),
    ("Colour", "Food"),
    ("Dates of history", "Dates of history"),
]
MADE: dict[str, Sequence[tuple[str, str]]] = {
    "qa_f1_score": _ENGLISH,
    "rouge_score": _SUMMARIES + _ENGLISH,
    "qa_f1_zh_score": _CHINESE,
    "rouge_zh_score": _CHINESE,
    "count_score": _NUMBERS,
    "retrieval_score": _PASSAGES,
    "retrieval_zh_score": _CHINESE_PASSAGES,
    "code_sim_score": _LINES,
    "classification_score": _NAMED,
}


def made_pairs() -> Iterator[tuple[str, str, str]]:
    """Metric, answer, right answer."""
    for metric, pairs in MADE.items():
        yield from ((metric, answer, right) for answer, right in pairs)


def official_code(name: str, patch: pytest.MonkeyPatch) -> ModuleType:
    """The published `name`.py from where it lies; without it, or what it needs, the test is skipped."""
    for package in ("jieba", "fuzzywuzzy", "rouge"):
        pytest.importorskip(package, reason=f"the published metrics need {package}")
    metrics = official.loaded(official.code("LongBench/LongBench/metrics.py"), patch)
    patch.setitem(sys.modules, "metrics", metrics)
    return metrics if name == "metrics" else official.loaded(official.code(f"LongBench/LongBench/{name}.py"), patch)


def _values(patch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    published = official_code("metrics", patch)
    for metric, answer, right in made_pairs():
        value = getattr(published, metric)(answer, right, all_classes=CLASSES)
        yield {"metric": metric, "answer": answer, "right": right, "value": value}


if __name__ == "__main__":
    with pytest.MonkeyPatch.context() as patch:
        VALUES.write_text(json.dumps([*_values(patch)], ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
