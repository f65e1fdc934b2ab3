"""LongBench (Bai et al. 2023): questions about long documents, summaries, examples and code; automatic metrics."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field, field_validator

from gateau_dagster.config.addresses import InputAddress, InputAddresses
from gateau_dagster.config.base import Section
from gateau_dagster.data.sources import SourceFile, location
from gateau_dagster.errors import GateauError
from gateau_dagster.evaluation.benchmark import Generation, Materials, Question, QuestionBenchmark
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
from gateau_dagster.evaluation.question_files import (
    QuestionFiles,
    json_of,
    rows_of,
    template_gaps,
)

if TYPE_CHECKING:
    pass


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


@dataclass(frozen=True, kw_only=True)
class LongBenchRow:
    """A row of a data set; `fields`: as published. bucket: its range of length, in words or characters."""

    data_set: str
    row_id: str
    bucket: str
    fields: Mapping[str, Any]
    answers: tuple[str, ...]
    classes: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class LongBenchPrompts:
    """The prompt with {context} and {input}, and the most tokens of an answer, by data set."""

    texts: Mapping[str, str]
    answer_tokens: Mapping[str, int]


def bucket_of(length: int) -> str:
    """Return the published range that contains a length."""
    return "0-4k" if length < 4000 else "4-8k" if length < 8000 else "8k+"


def read_prompts(files: Sequence[SourceFile], sets: Sequence[str], place: str) -> LongBenchPrompts:
    """Return the prompts. Raises GateauError, with `place` in front, where a file or a set in it is missing."""
    found: dict[str, dict[str, Any]] = {}
    for name, kind in ((PROMPTS, str), (LENGTHS, int)):
        file = next((each for each in files if each.name == name), None)
        if file is None:
            raise GateauError("evaluation.benchmark_data", f"{place}: {name} is missing; {PROMPTS_CURE}")
        found[name] = json_of(file, place)
        missing = [each for each in sets if each not in found[name]]
        if missing:
            raise GateauError(
                "evaluation.benchmark_data",
                f"{place}: {file.label} has no entry for {', '.join(missing)}; {PROMPTS_CURE}",
            )
        other = [each for each in sets if not isinstance(found[name][each], kind)]
        if other:
            what = "text" if kind is str else "whole number"
            raise GateauError(
                "evaluation.benchmark_data",
                f"{place}: {file.label} has no {what} for {', '.join(other)}; {PROMPTS_CURE}",
            )
    for name in sets:
        try:
            template_gaps(found[PROMPTS][name])
        except ValueError as error:
            raise GateauError(
                "evaluation.benchmark_data", f"{place}: {PROMPTS}: {name}: {error}; {PROMPTS_CURE}"
            ) from error
    return LongBenchPrompts(texts=found[PROMPTS], answer_tokens=found[LENGTHS])


def read_rows(
    files: Sequence[SourceFile], sets: Sequence[str], place: str, *, extended: bool, most: int | None
) -> Iterator[LongBenchRow]:
    """Yield the first `most` rows of each of `sets`, in their order; `extended`: of LongBench-E.

    A file belongs to the set that it is named after, with the suffix _e for LongBench-E. In a file of another name,
    each record names its set. Raises GateauError for a set without rows, a row without a required field, or a repeated
    id.
    """
    known = {f"{name}{_EXTENDED if extended else ''}": name for name in SETS}
    other = {f"{name}{'' if extended else _EXTENDED}" for name in SETS}
    wanted = [file for file in files if file.stem not in other and known.get(file.stem, sets[0]) in sets]
    rows: dict[str, list[LongBenchRow]] = {name: [] for name in sets}
    ids: set[tuple[str, str]] = set()
    for file, number, record in rows_of(wanted, place):
        name = known.get(file.stem) or record.get("dataset")
        if name not in rows or (most is not None and len(rows[name]) == most):
            continue
        row = _row(name, record, f"{place}: {location(file, number)}", number)
        if (name, row.row_id) in ids:
            raise GateauError(
                "evaluation.benchmark_data",
                f"{place}: {location(file, number)}: the id {row.row_id!r} of {name} is repeated: remove one of "
                "the rows",
            )
        ids.add((name, row.row_id))
        rows[name].append(row)
    missing = [name for name, found in rows.items() if not found]
    if missing:
        raise GateauError(
            "evaluation.benchmark_data",
            f"{place}: no rows of {', '.join(missing)}: remove them from sets, or {DATA_CURE}",
        )
    for found in rows.values():
        yield from found


def _row(name: str, record: dict[str, Any], where: str, number: int) -> LongBenchRow:
    answers, length = record.get("answers"), record.get("length")
    missing = [key for key in ("context", "input") if not isinstance(record.get(key), str)]
    if not isinstance(length, int):
        missing.append("length")
    if not isinstance(answers, list) or not answers or not all(isinstance(each, str) for each in answers):
        missing.append("answers")
    if missing:
        raise GateauError(
            "evaluation.benchmark_data", f"{where} is not a row of {name}: it lacks {', '.join(missing)}; {DATA_CURE}"
        )
    assert isinstance(length, int) and isinstance(answers, list)
    return LongBenchRow(
        data_set=name,
        row_id=str(record.get("_id") or number),
        bucket=bucket_of(length),
        fields=record,
        answers=tuple(answers),
        classes=tuple(record.get("all_classes") or ()),
    )


class LongBenchOptions(Section):
    """LongBench's data sets to run, and the location of their files."""

    data: InputAddresses | None = Field(
        default=None, description="Its rows: folder, glob, s3:// or hf:// address; a file a data set, <set>.jsonl."
    )
    prompts: InputAddress | None = Field(
        default=None, description="Folder of dataset2prompt.json and dataset2maxlen.json, as published."
    )
    sets: Literal["gateau", "english", "all"] | list[str] = Field(
        default="gateau",
        description="gateau: the twelve that GATEAU reports; english: sixteen, with those in code; all: 21; or names.",
    )
    extended: bool = Field(default=False, description="LongBench-E: files <set>_e.jsonl, even in length.")
    rows: int | None = Field(default=None, ge=1, description="The first rows of each set; default: all.")

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


def questions_of(rows: Sequence[LongBenchRow], prompts: LongBenchPrompts) -> list[Question]:
    """Return one question per row, with the published prompt; answers are greedy.

    Ids consist of data set, range of length and the row's own id. Unlike in the published code, samsum's answers do not
    stop at their first line. The value is the same, because only the first line is graded.
    """
    return [
        Question(
            question_id=f"{row.data_set}/{row.bucket}/{row.row_id}",
            group=row.data_set,
            turns=(_worded(prompts.texts[row.data_set], row),),
            generation=Generation(max_new_tokens=prompts.answer_tokens[row.data_set]),
            chat=SETS[row.data_set].chat,
            references=row.answers,
            facts={"classes": [*row.classes], "input": row.fields["input"]},
        )
        for row in rows
    ]


def _worded(prompt: str, row: LongBenchRow) -> str:
    try:
        return prompt.format(**row.fields)
    except (KeyError, IndexError, ValueError) as error:
        raise GateauError(
            "evaluation.benchmark_data",
            f"evaluation: LongBench's prompt of {row.data_set} asks for {error}, which its rows lack; {PROMPTS_CURE}",
        ) from error


def length_of(question_id: str) -> str:
    """Return the range of length of a question."""
    return question_id.split("/")[1]


def kind_of(question_id: str) -> str:
    """Return the kind of task of a question's data set."""
    return SETS[question_id.split("/", maxsplit=1)[0]].kind


class LongBenchQuestions(QuestionBenchmark):
    """LongBench's questions, for metrics and for a judge."""

    options: LongBenchOptions
    unit = "%"
    groups = "data set"
    groupings: ClassVar = {"length": length_of, "kind of task": kind_of}

    def files(self) -> Sequence[QuestionFiles]:
        return [*super().files(), *self._rows_and_prompts()]

    def questions(self, materials: Materials) -> list[Question]:
        """Read the questions from the files. Raises GateauError where they are missing or wrong."""
        data, prompts = self._rows_and_prompts()
        names = self.options.names
        texts = read_prompts(prompts.find(), names, prompts.place)
        rows = read_rows(data.find(), names, data.place, extended=self.options.extended, most=self.options.rows)
        return questions_of([*rows], texts)

    def _rows_and_prompts(self) -> list[QuestionFiles]:
        return [
            QuestionFiles(config=self.config, place=self.place(key), path=getattr(self.options, key), cure=cure)
            for key, cure in (("data", DATA_CURE), ("prompts", PROMPTS_CURE))
        ]


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
