"""Answers and right answers made up for each metric, what they are worth by the published code, and that code."""

import importlib.util
import json
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

OFFICIAL = "GATEAU_LONGBENCH_CODE"
"""Environment variable: the folder of the published metrics.py and eval.py."""
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


def official_code(name: str) -> ModuleType:
    """The published file `name`.py from where it lies; without it, or what it needs, the test is skipped."""
    folder = os.environ.get(OFFICIAL)
    if not folder:
        pytest.skip(f"{OFFICIAL} does not name the folder of LongBench's metrics.py and eval.py")
    for package in ("jieba", "fuzzywuzzy", "rouge"):
        pytest.importorskip(package, reason=f"the published metrics need {package}")
    for module in ("metrics", name):
        spec = importlib.util.spec_from_file_location(module, Path(folder) / f"{module}.py")
        assert spec is not None and spec.loader is not None
        sys.modules[module] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[module])
    return sys.modules[name]


def _values() -> Iterator[dict[str, Any]]:
    official = official_code("metrics")
    for metric, answer, right in made_pairs():
        value = getattr(official, metric)(answer, right, all_classes=CLASSES)
        yield {"metric": metric, "answer": answer, "right": right, "value": value}


if __name__ == "__main__":
    VALUES.write_text(json.dumps([*_values()], ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
