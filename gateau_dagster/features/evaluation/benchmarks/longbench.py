"""LongBench (Bai et al. 2023): questions about long documents, summaries, examples and code; by its metrics or a judge.

The judge rates as in GATEAU, with the prompts of GATEAU's own files (S1s-Z/GATEAU): questions from 1 to 3, summaries
from 1 to 5. An answer that is all wrong has the lowest rating, which is a third of the points for questions and a fifth
for summaries.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import Any, ClassVar, Literal

import polars as pl
from pydantic import Field, field_validator

from gateau_dagster.config.base import Section
from gateau_dagster.config.values import InputAddress, InputAddresses
from gateau_dagster.data.sources import location
from gateau_dagster.errors import GateauError
from gateau_dagster.features.evaluation.benchmark import (
    Generation,
    JudgeRequest,
    Materials,
    Measured,
    Question,
    QuestionBenchmark,
    id_part,
)
from gateau_dagster.features.evaluation.grading import (
    chinese_f1,
    chinese_rouge_l,
    class_share,
    line_similarity,
    number_share,
    passage_share,
    rouge_l,
    word_f1,
)
from gateau_dagster.features.evaluation.judged import RatedBenchmark, mean_scores
from gateau_dagster.features.evaluation.question_files import QuestionFiles, template_gaps

# Takes answer and right answer, and the classes for the sets that have them.
Metric = Callable[[str, str], float] | Callable[[str, str, Sequence[str]], float]


@dataclass(frozen=True, kw_only=True)
class DataSet:
    """A data set of LongBench.

    kind: of task; the papers' tables show the mean of each. metric: 0 to 1.
    chat: whether the prompt goes through the model's chat template; examples and code are continued without it.
    first_line: whether the answer ends at its first line. segmented: whether jieba is needed.
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
    """Return the best value, 0 to 1, of an answer in data set `name` against any of the right ones.

    Raises GateauError if jieba is needed and not installed.
    """
    data_set = SETS[name]
    if data_set.first_line:
        answer = answer.lstrip("\n").split("\n")[0]
    return max((_value(data_set, answer, each, classes) for each in right), default=0.0)


def _value(data_set: DataSet, answer: str, right: str, classes: Sequence[str]) -> float:
    if data_set.metric is class_share:
        return class_share(answer, right, classes)
    return data_set.metric(answer, right)  # pyright: ignore[reportCallIssue]


PROMPTS, LENGTHS = "dataset2prompt.json", "dataset2maxlen.json"
DATA_CURE = (
    "download https://huggingface.co/datasets/THUDM/LongBench/resolve/main/data.zip, unpack it, and give its folder "
    "data of .jsonl files, or an s3:// or hf:// address of them"
)
PROMPTS_CURE = (
    f"get {PROMPTS} and {LENGTHS} from https://github.com/THUDM/LongBench (folder LongBench/config), and give their "
    "folder"
)
_EXTENDED = "_e"


def bucket_of(length: int) -> str:
    """Return the published range that contains a length."""
    return "0-4k" if length < 4000 else "4-8k" if length < 8000 else "8k+"


def read_prompts(files: QuestionFiles, sets: Sequence[str]) -> tuple[Mapping[str, str], Mapping[str, int]]:
    """Return the prompt with {context} and {input}, and the most tokens of an answer, by data set.

    Raises GateauError if a file or a set in it is missing.
    """
    found, named = [], {file.name: file for file in files.find()}
    for name, kind in ((PROMPTS, str), (LENGTHS, int)):
        if name not in named:
            raise files.wrong(f"{name} is missing")
        values = files.mapping(named[name])
        if other := [each for each in sets if not isinstance(values.get(each), kind)]:
            what = "text" if kind is str else "whole number"
            raise files.wrong(f"{named[name].label} has no {what} for {', '.join(other)}")
        found.append(values)
    for name in sets:
        with files.understood(f"{PROMPTS}: {name}"):
            template_gaps(found[0][name])
    return found[0], found[1]


def read_rows(
    files: QuestionFiles, sets: Sequence[str], *, extended: bool, most: int | None
) -> dict[str, dict[str, dict[str, Any]]]:
    """Return the first `most` rows of each of `sets` by id; `extended`: of LongBench-E.

    A file belongs to the set that it is named after, with the suffix _e for LongBench-E. In a file of another name,
    each record names its set. Raises GateauError for a set without rows, a row without a required field, or a repeated
    id.
    """
    known = {f"{name}{_EXTENDED if extended else ''}": name for name in SETS}
    other = {f"{name}{'' if extended else _EXTENDED}" for name in SETS}
    wanted = [file for file in files.find() if file.stem not in other and known.get(file.stem, sets[0]) in sets]
    rows: dict[str, dict[str, dict[str, Any]]] = {name: {} for name in sets}
    for file, number, record in files.objects(wanted):
        name = known.get(file.stem) or record.get("dataset")
        if name not in rows or len(rows[name]) == most:
            continue
        where, row_id = location(file, number), str(record.get("_id") or number)
        if missing := _missing(record):
            raise files.wrong(f"{where} is not a row of {name}: it lacks {', '.join(missing)}")
        if row_id in rows[name]:
            raise files.wrong(f"{where}: the id {row_id!r} of {name} is repeated: remove one of the rows")
        rows[name][row_id] = record
    if empty := [name for name, found in rows.items() if not found]:
        raise files.wrong(f"no rows of {', '.join(empty)}: remove them from sets")
    return rows


def _missing(record: Mapping[str, Any]) -> list[str]:
    missing = [key for key in ("context", "input") if not isinstance(record.get(key), str)]
    if not isinstance(record.get("length"), int):
        missing.append("length")
    answers = record.get("answers")
    if not isinstance(answers, list) or not answers or not all(isinstance(each, str) for each in answers):
        missing.append("answers")
    return missing


class LongBenchOptions(Section):
    """LongBench's data sets to run, and the location of their files."""

    data: InputAddresses | None = Field(
        default=None,
        description="Rows: folder, glob, s3:// or hf:// address; one file per data set, <set>.jsonl.",
        examples=["LongBench/data/*.jsonl"],
    )
    prompts: InputAddress | None = Field(
        default=None,
        description="Folder of dataset2prompt.json and dataset2maxlen.json, as published.",
        examples=["LongBench/config/dataset2prompt.json"],
    )
    sets: Literal["gateau", "english", "all"] | list[str] = Field(
        default="gateau",
        description="gateau: the twelve that GATEAU reports; english: sixteen, with those in code; all: 21; or names.",
    )
    extended: bool = Field(default=False, description="LongBench-E: files <set>_e.jsonl, even in length.")
    rows: int | None = Field(
        default=None, ge=1, description="Number of first rows of each set; default: all.", examples=[50]
    )

    @field_validator("sets")
    @classmethod
    def _known(cls, sets: str | list[str]) -> str | list[str]:
        if isinstance(sets, list) and (not sets or not {*sets} <= {*SETS}):
            raise GateauError("evaluation.task", f"must be gateau, english, all, or a list of these: {', '.join(SETS)}")
        return sets

    @property
    def names(self) -> tuple[str, ...]:
        """Return the data sets, each once, in LongBench's order."""
        chosen = SUITES[self.sets] if isinstance(self.sets, str) else self.sets
        return tuple(name for name in SETS if name in chosen)


def kind_of(question_id: str) -> str:
    """Return the kind of task of a question's data set."""
    return SETS[id_part(0)(question_id)].kind


class LongBenchQuestions(QuestionBenchmark):
    """LongBench's questions, for metrics and for a judge."""

    options: LongBenchOptions
    unit = "%"
    groups = "data set"
    groupings: ClassVar = {"length": id_part(1), "kind of task": kind_of}
    official: ClassVar = {"data": DATA_CURE, "prompts": PROMPTS_CURE}

    def questions(self, materials: Materials) -> list[Question]:
        """Return one question per row, with the published prompt; answers are greedy.

        Ids consist of data set, range of length and the row's own id. Unlike in the published code, samsum's answers do
        not stop at their first line. The value is the same, because only the first line is graded.

        Raises GateauError if the files are missing or wrong.
        """
        data, files = self.file("data"), self.file("prompts")
        prompts, answer_tokens = read_prompts(files, self.options.names)
        rows = read_rows(data, self.options.names, extended=self.options.extended, most=self.options.rows)
        found = []
        for name, row_id, row in ((name, *each) for name, of_set in rows.items() for each in of_set.items()):
            with files.understood(f"{PROMPTS}: {name}"):
                turn = prompts[name].format(**row)
            question = Question(
                question_id=f"{name}/{bucket_of(row['length'])}/{row_id}",
                group=name,
                turns=(turn,),
                generation=Generation(max_new_tokens=answer_tokens[name]),
                chat=SETS[name].chat,
                references=tuple(row["answers"]),
                facts={"classes": [*(row.get("all_classes") or ())], "input": row["input"]},
            )
            found.append(question)
        return found


class LongBench(LongBenchQuestions):
    """LongBench by its automatic metrics."""

    name = "longbench"
    title = "LongBench"
    description = "Questions about long documents, summaries, examples and code, by LongBench's automatic metrics."

    def value(self, question: Question, answer: str) -> float:
        """Return the value by the data set's metric against the best right answer, in per cent."""
        return 100 * answer_score(question.group, answer, question.references, question.facts["classes"])

    def check(self) -> None:
        """Raise GateauError for missing files, and for Chinese sets where jieba is not installed."""
        super().check()
        segmented = [name for name in self.options.names if SETS[name].segmented]
        if segmented and find_spec("jieba") is None:
            raise GateauError(
                "evaluation.package",
                f"evaluation.longbench.sets: {', '.join(segmented)} are compared word by word, but jieba, which "
                "separates Chinese words, is not installed: pip install 'gateau-dagster[evaluation]', or name "
                "other sets",
            )


SYSTEM = "You're a good assistant at evaluating the quality of texts."
SUMMARIES = ("gov_report", "qmsum", "multi_news", "vcsum")
HIGHEST = {name: 5 if name in SUMMARIES else 3 for name in SUITES["gateau"]}
"""Highest rating of the judge's scale, by data set; the lowest is 1."""
GATEAU_PROMPTS = {"question_prompt": "prompt_for_qa.txt", "summary_prompt": "prompt_for_sum.txt"}
GATEAU_CURE = "from https://github.com/S1s-Z/GATEAU (folder train/LongBench), and give its path"


class LongBenchJudgedOptions(LongBenchOptions):
    """The data sets to run, the location of their files, and the judge's prompts."""

    question_prompt: InputAddress | None = Field(
        default=None, description="Path of GATEAU's prompt_for_qa.txt.", examples=["prompts/question.txt"]
    )
    summary_prompt: InputAddress | None = Field(
        default=None, description="Path of GATEAU's prompt_for_sum.txt.", examples=["prompts/summary.txt"]
    )


class LongBenchJudged(LongBenchQuestions, RatedBenchmark):
    """LongBench rated with GATEAU's prompts."""

    name = "longbench_judged"
    title = "LongBench by a judge"
    description = (
        "Questions about long documents and summaries, each answer rated by a judge beside the right ones: 1 to 3 for "
        "questions, 1 to 5 for summaries, in per cent of the highest rating."
    )
    options: LongBenchJudgedOptions
    unit = "%"
    # The mean of the twelve sets' lowest values: a third of 100 for eight of them, a fifth for four.
    floor = sum(100 / highest for highest in HIGHEST.values()) / len(HIGHEST)
    ratings = (1, 5)
    again = 4
    asks_as = "longbench"
    official: ClassVar = {
        **LongBenchQuestions.official,
        **{key: f"get {name} {GATEAU_CURE}" for key, name in GATEAU_PROMPTS.items()},
    }

    def questions(self, materials: Materials) -> list[Question]:
        """Return LongBench's questions; `facts` also hold the judge's prompt."""
        templates = [_template(self.file(key), gaps) for key, gaps in zip(GATEAU_PROMPTS, (3, 2), strict=True)]
        return [
            replace(each, facts={**each.facts, "template": templates[each.group in SUMMARIES]})
            for each in super().questions(materials)
        ]

    def requests(self, question: Question, answers: Sequence[str]) -> list[JudgeRequest]:
        """Return the request: the answer on one line, as in GATEAU, and the right answers as a Python list."""
        right, answer = str([*question.references]), answers[0].strip().replace("\n", " ")
        given = (right, answer) if question.group in SUMMARIES else (question.facts["input"], right, answer)
        return [self.request(question, SYSTEM, question.facts["template"].format(*given))]

    def grade(self, questions: Sequence[Question], answers: pl.DataFrame, judgments: pl.DataFrame | None) -> Measured:
        """Return the rating as a percentage of the highest rating; a rating above the highest counts as missing."""
        assert judgments is not None, "the benchmark is judged"
        highest = pl.DataFrame({"question_id": [each.question_id for each in questions]}).with_columns(
            highest=pl.Series([float(HIGHEST[each.group]) for each in questions], dtype=pl.Float64)
        )
        shares = judgments.join(highest, on="question_id", how="inner", maintain_order="left").with_columns(
            score=pl.when(pl.col("score") <= pl.col("highest")).then(pl.col("score") / pl.col("highest"))
        )
        return mean_scores(questions, shares, scale=100)

    def check(self) -> None:
        """Raise GateauError for missing files, a missing judge, and sets that GATEAU does not have judged."""
        others = [name for name in self.options.names if name not in HIGHEST]
        if others:
            raise GateauError(
                "evaluation.task",
                f"{self.place('sets')}: {', '.join(others)} are not judged: name some of {', '.join(HIGHEST)}, or "
                "gateau",
            )
        super().check()


def _template(prompt: QuestionFiles, gaps: int) -> str:
    text = prompt.text(prompt.only())
    with prompt.understood():
        if (found := template_gaps(text)) != [""] * gaps:
            shown = " ".join(f"{{{name}}}" for name in found) or "none"
            raise ValueError(f"its gaps are: {shown}; expected {{}} {gaps} times")
    return text
