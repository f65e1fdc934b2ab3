"""HELMET (Yen et al. 2024), its tasks that need no judge: recall, questions over passages, re-ranking, labels.

Texts and settings are read from its repository, rows from its data and from the public sets that it takes labels of.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import polars as pl
import yaml
from pydantic import Field, field_validator

from gateau_dagster.config.addresses import InputAddress
from gateau_dagster.config.base import Section
from gateau_dagster.data.sources import SourceFile
from gateau_dagster.errors import GateauError
from gateau_dagster.evaluation.benchmark import Benchmark
from gateau_dagster.evaluation.grading import grade_each
from gateau_dagster.evaluation.helmet_labels import LABELLED, asked_labels, read_labelled, says
from gateau_dagster.evaluation.helmet_labels import cure as labels_cure
from gateau_dagster.evaluation.helmet_rows import asked_of
from gateau_dagster.evaluation.helmet_words import RANKED, READ, RECALL, Asked, Setting, settings_of, words_of
from gateau_dagster.evaluation.materials import Materials
from gateau_dagster.evaluation.metrics.ranking import ndcg, ranked_ids
from gateau_dagster.evaluation.metrics.word_overlap import normalised_words
from gateau_dagster.evaluation.question_files import check_files, files_digest, question_files, rows_of, text_of
from gateau_dagster.evaluation.question_tokens import check_lengths, lengths_within
from gateau_dagster.evaluation.questions import Generation, Question
from gateau_dagster.evaluation.scored import Measured, Scored

if TYPE_CHECKING:
    from gateau_dagster.config import Config

OFFICIAL, DATA, SETS = "evaluation.helmet.official", "evaluation.helmet.data", "evaluation.helmet.data_sets"
CURE = "clone https://github.com/princeton-nlp/HELMET, and give its path"
DATA_CURE = (
    "download https://huggingface.co/datasets/princeton-nlp/HELMET/resolve/main/data.tar.gz, unpack it, and give the "
    "folder that holds its folder data"
)
TASKS = (RECALL, *READ, RANKED)
_FILES = ("recall", "rag", "rerank", "icl")
_CONFIGS = tuple(f"configs/{name}{short}.yaml" for name in _FILES for short in ("_short", ""))
_CODE = "data.py"


class HelmetOptions(Section):
    """Which of HELMET's tasks are asked, how long, and where they lie."""

    official: InputAddress | None = Field(default=None, description="The folder of HELMET's repository.")
    data: InputAddress | None = Field(
        default=None, description="The folder that holds HELMET's unpacked folder data; default: the repository."
    )
    data_sets: InputAddress | None = Field(
        default=None,
        description="The folder with the data sets of in-context learning, by their names on the hub, as parquet.",
    )
    tasks: list[str] | None = Field(
        default=None,
        min_length=1,
        description=f"Some of {', '.join(TASKS)}, and {', '.join(LABELLED)}. Default: all, the latter with data_sets.",
    )
    lengths: list[int] = Field(
        default=[32_768, 65_536],
        min_length=1,
        description="Of its prompts in tokens: 8192, 16384 ... 131072. Default: those that scoring.max_length leaves.",
    )
    questions: int | None = Field(
        default=None,
        ge=1,
        description="Different ones a task and length; rows may share one. Default: HELMET's 100, 500 where labels are "
        "asked.",
    )
    chat: bool = Field(default=False, description="Whether prompts go through the model's chat template.")

    @field_validator("tasks")
    @classmethod
    def _known(cls, tasks: list[str] | None) -> list[str] | None:
        if tasks is not None and not {*tasks} <= {*TASKS, *LABELLED}:
            raise ValueError(f"are some of {', '.join((*TASKS, *LABELLED))}")
        return tasks

    @property
    def names(self) -> tuple[str, ...]:
        """The tasks."""
        if self.tasks is not None:
            return tuple(dict.fromkeys(self.tasks))
        return TASKS if self.data_sets is None else (*TASKS, *LABELLED)

    @property
    def labelled(self) -> tuple[str, ...]:
        """Those of in-context learning."""
        return tuple(name for name in self.names if name in LABELLED)


def _wanted(config: Config, options: HelmetOptions) -> list[Setting]:
    """The chosen tasks at the chosen lengths; raises GateauError for one that HELMET does not have."""
    paths = None if options.official is None else [f"{options.official}/{name}" for name in _CONFIGS]
    files = question_files(config, OFFICIAL, paths, cure=CURE)
    known = [each for file in files for each in settings_of(yaml.safe_load(text_of(file, OFFICIAL)))]
    lengths = lengths_within(options.lengths, config.scoring.max_length)
    found = [each for each in known if each.task in options.names and each.length in lengths]
    for task in options.names:
        missing = {*lengths} - {each.length for each in found if each.task == task}
        if missing:
            have = ", ".join(str(length) for length in sorted({each.length for each in known if each.task == task}))
            raise GateauError(f"evaluation.helmet.lengths: {task} has {have}, not {min(missing)}")
    return found


def _code(config: Config, options: HelmetOptions) -> SourceFile:
    path = None if options.official is None else f"{options.official}/{_CODE}"
    return question_files(config, OFFICIAL, path, cure=CURE)[0]


def _data_paths(options: HelmetOptions, settings: Sequence[Setting]) -> list[str]:
    names = (name for each in settings for name in (each.test_file, each.demo_file) if name)
    return [_data_path(options, name) for name in dict.fromkeys(names)]


def _data_path(options: HelmetOptions, name: str) -> str:
    return f"{options.official if options.data is None else options.data}/{name}"


def _questions(materials: Materials, options: HelmetOptions) -> list[Question]:
    config, found = materials.config, []
    code = _code(config, options)
    for setting, asked in _asked(config, options, code):
        seen = Counter[str]()
        for each in asked:
            seen[each.key] += 1
            found.append(_question(setting, each, seen[each.key], chat=options.chat))
        materials.progress(len(found), None, "questions", f"{setting.task} of {setting.length} tokens")
    return found


def _asked(config: Config, options: HelmetOptions, code: SourceFile) -> Iterator[tuple[Setting, list[Asked]]]:
    """What is asked of each task at each length; files are read once."""
    settings = _wanted(config, options)
    rows = {
        path: [row for _, _, row in rows_of(question_files(config, DATA, path, cure=DATA_CURE), DATA)]
        for path in _data_paths(options, settings)
    }
    labelled = {task: read_labelled(config, SETS, str(options.data_sets), task) for task in options.labelled}
    for setting in settings:
        words, most = words_of(code, setting.task, OFFICIAL), options.questions or setting.most
        if setting.task in labelled:
            yield setting, [*asked_labels(setting, words, labelled[setting.task], most=most)]
            continue
        path = _data_path(options, setting.test_file)
        demos = rows[_data_path(options, setting.demo_file)] if setting.demo_file else ()
        try:
            yield setting, [*asked_of(setting, words, rows[path], demos, most=most)]
        except (KeyError, IndexError, TypeError) as error:
            raise GateauError(f"{DATA}: {path}: a row is no row of {setting.task} ({error}); {DATA_CURE}") from error


def _question(setting: Setting, asked: Asked, number: int, *, chat: bool) -> Question:
    """The answer's beginning is the end of a prompt that is continued."""
    return Question(
        question_id=f"{setting.task}/{setting.length}/{asked.key}/{number}",
        group=f"{setting.task}/{setting.length}",
        turns=(asked.prompt if chat else f"{asked.prompt}\n{asked.lead}",),
        prefill=asked.lead if chat else "",
        chat=chat,
        generation=Generation(max_new_tokens=setting.answer_tokens, stop=("\n",) if setting.one_line else ()),
        references=asked.answers,
        facts={"relevance": dict(asked.relevance), "whole": asked.whole, "lead": asked.lead},
    )


def value_of(question: Question, answer: str) -> float:
    """In per cent: NDCG@10 of a ranking; whether a label is the right one; whether the answer holds a right one."""
    if question.facts["relevance"]:
        return 100 * ndcg(ranked_ids(answer), question.facts["relevance"], depth=10)
    if question.facts["whole"]:
        return 100.0 * any(says(answer, question.facts["lead"], right) for right in question.references)
    said = " ".join(normalised_words(answer))
    return 100.0 * any(" ".join(normalised_words(right)) in said for right in question.references)


def grade(
    questions: Sequence[Question], answers: pl.DataFrame, judgments: pl.DataFrame | None, options: HelmetOptions
) -> Measured:
    """`value_of` each question."""
    del judgments, options
    return grade_each(questions, answers, value_of)


def _settings(config: Config, options: HelmetOptions) -> Mapping[str, Any]:
    settings = _wanted(config, options)
    official = [f"{options.official}/{name}" for name in (*_CONFIGS, _CODE)]
    return {
        "lengths": lengths_within(options.lengths, config.scoring.max_length),
        OFFICIAL: files_digest(config, OFFICIAL, official, cure=CURE),
        **(
            {DATA: files_digest(config, DATA, paths, cure=DATA_CURE)}
            if (paths := _data_paths(options, settings))
            else {}
        ),
        **{f"{SETS}: {task}": _labels_digest(config, options, task) for task in options.labelled},
    }


def _labels_path(options: HelmetOptions, task: str) -> str | None:
    return None if options.data_sets is None else f"{options.data_sets}/{LABELLED[task].hub}"


def _labels_digest(config: Config, options: HelmetOptions, task: str) -> str:
    return files_digest(config, SETS, _labels_path(options, task), cure=labels_cure(task))


def _check(config: Config, options: HelmetOptions) -> None:
    """Raises GateauError for files that are not there, and lengths that HELMET does not have, or no model is shown."""
    given = "lengths" in options.model_fields_set
    check_lengths("evaluation.helmet.lengths", options.lengths, config.scoring.max_length, given=given)
    _code(config, options)
    check_files(config, DATA, _data_paths(options, _wanted(config, options)), cure=DATA_CURE)
    for task in options.labelled:
        check_files(config, SETS, _labels_path(options, task), cure=labels_cure(task))


BENCHMARK = Benchmark(
    name="helmet",
    title="HELMET",
    description="Values of JSON keys, questions over retrieved passages, re-ranking, and labels learned from examples, "
    "at several lengths.",
    options=HelmetOptions,
    settings=_settings,
    check=_check,
    scored=Scored(
        unit="%",
        groups="task and length",
        groupings={
            "length": lambda question_id: question_id.split("/")[1],
            "task": lambda question_id: question_id.split("/", maxsplit=1)[0],
        },
        questions=_questions,
        grade=grade,
    ),
    code_version="3",
)
