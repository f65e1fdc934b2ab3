"""LongBench's data sets (Bai et al. 2023): which of its metrics each has, and how its prompt is shown."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gateau_dagster.evaluation.metrics.exact import class_share, line_similarity, number_share, passage_share
from gateau_dagster.evaluation.metrics.rouge_l import chinese_rouge_l, rouge_l
from gateau_dagster.evaluation.metrics.word_overlap import chinese_f1, word_f1

# Of answer and right answer; of the classes as well for the sets that have them.
Metric = Callable[[str, str], float] | Callable[[str, str, Sequence[str]], float]


@dataclass(frozen=True, kw_only=True)
class DataSet:
    """kind: of task, by which the papers' tables have means. metric: 0 to 1. chat: whether the prompt goes through the
    model's chat template; examples and code are continued as they stand. first_line: whether the answer ends at its
    first line. segmented: whether jieba is needed.
    """

    kind: str
    metric: Metric
    chat: bool = True
    first_line: bool = False
    segmented: bool = False


_ONE, _SEVERAL, _SUMMARY = "single-document QA", "multi-document QA", "summarization"
_EXAMPLES, _SYNTHETIC, _CODE = "few-shot learning", "synthetic tasks", "code completion"
SETS = {
    "narrativeqa": DataSet(kind=_ONE, metric=word_f1),
    "qasper": DataSet(kind=_ONE, metric=word_f1),
    "multifieldqa_en": DataSet(kind=_ONE, metric=word_f1),
    "multifieldqa_zh": DataSet(kind=_ONE, metric=chinese_f1, segmented=True),
    "hotpotqa": DataSet(kind=_SEVERAL, metric=word_f1),
    "2wikimqa": DataSet(kind=_SEVERAL, metric=word_f1),
    "musique": DataSet(kind=_SEVERAL, metric=word_f1),
    "dureader": DataSet(kind=_SEVERAL, metric=chinese_rouge_l, segmented=True),
    "gov_report": DataSet(kind=_SUMMARY, metric=rouge_l),
    "qmsum": DataSet(kind=_SUMMARY, metric=rouge_l),
    "multi_news": DataSet(kind=_SUMMARY, metric=rouge_l),
    "vcsum": DataSet(kind=_SUMMARY, metric=chinese_rouge_l, segmented=True),
    "trec": DataSet(kind=_EXAMPLES, metric=class_share, chat=False, first_line=True),
    "triviaqa": DataSet(kind=_EXAMPLES, metric=word_f1, chat=False, first_line=True),
    "samsum": DataSet(kind=_EXAMPLES, metric=rouge_l, chat=False, first_line=True),
    "lsht": DataSet(kind=_EXAMPLES, metric=class_share, chat=False, first_line=True),
    "passage_count": DataSet(kind=_SYNTHETIC, metric=number_share),
    "passage_retrieval_en": DataSet(kind=_SYNTHETIC, metric=passage_share),
    "passage_retrieval_zh": DataSet(kind=_SYNTHETIC, metric=passage_share),
    "lcc": DataSet(kind=_CODE, metric=line_similarity, chat=False),
    "repobench-p": DataSet(kind=_CODE, metric=line_similarity, chat=False),
}
_CHINESE = ("multifieldqa_zh", "dureader", "vcsum", "lsht", "passage_retrieval_zh")
SUITES = {
    # Single- and multi-document questions and summaries, in both languages.
    "gateau": tuple(SETS)[:12],
    # SkipAlign leaves out its two synthetic sets.
    "english": tuple(name for name in SETS if name not in _CHINESE),
    "all": tuple(SETS),
}


def answer_score(name: str, answer: str, right: Sequence[str], classes: Sequence[str] = ()) -> float:
    """The best value, 0 to 1, of an answer in data set `name` against any of the right ones.

    Raises GateauError where jieba is needed and not installed.
    """
    data_set = SETS[name]
    if data_set.first_line:
        answer = answer.lstrip("\n").split("\n")[0]
    return max((_value(data_set, answer, each, classes) for each in right), default=0.0)


def _value(data_set: DataSet, answer: str, right: str, classes: Sequence[str]) -> float:
    if data_set.metric is class_share:
        return class_share(answer, right, classes)
    return data_set.metric(answer, right)  # pyright: ignore[reportCallIssue]
