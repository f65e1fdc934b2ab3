"""RULER (Hsieh et al. 2024): needles, chains of variables and most common words, made to measure without a network.

The texts and settings of its tasks are read from its repository (NVIDIA/RULER, Apache 2.0); the samples are our own.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, partial
from importlib.resources import files as package_files
from importlib.util import find_spec
from typing import TYPE_CHECKING, Annotated, Any

import polars as pl
import yaml
from pydantic import Field

from gateau_dagster.config.addresses import InputAddress, InputAddresses
from gateau_dagster.config.base import Section
from gateau_dagster.config.values import LONGEST, MOST_SEEDS
from gateau_dagster.errors import GateauError
from gateau_dagster.evaluation.benchmark import Benchmark
from gateau_dagster.evaluation.grading import grade_each
from gateau_dagster.evaluation.haystack import sentences_of
from gateau_dagster.evaluation.materials import Materials
from gateau_dagster.evaluation.metrics.exact import share_contained
from gateau_dagster.evaluation.python_texts import assigned
from gateau_dagster.evaluation.question_files import check_files, files_digest, question_files, text_of
from gateau_dagster.evaluation.question_tokens import base_tokenizer, check_lengths, lengths_within
from gateau_dagster.evaluation.questions import Generation, Question
from gateau_dagster.evaluation.ruler_tasks import MAKERS, Made, Material, Task, Words, chains
from gateau_dagster.evaluation.scored import Measured, Scored

if TYPE_CHECKING:
    from gateau_dagster.config import Config

OFFICIAL, HAYSTACK = "evaluation.ruler.official", "evaluation.ruler.haystack"
CURE = "clone https://github.com/NVIDIA/RULER, and give its path"
_FILES = ("scripts/synthetic.yaml", "scripts/data/synthetic/constants.py", "scripts/data/synthetic/niah.py")
_EXAMPLE_TOKENS = 500
OFFLINE = ("niah_single_1", "niah_multikey_2", "niah_multikey_3", "vt", "cwe", "fwe")
IN_ESSAYS = ("niah_single_2", "niah_single_3", "niah_multikey_1", "niah_multivalue", "niah_multiquery")


class RulerOptions(Section):
    """Which of RULER's tasks are made, how long and how many."""

    official: InputAddress | None = Field(default=None, description="The folder of RULER's repository.")
    haystack: InputAddresses | None = Field(
        default=None, description=f"Text files, such as Paul Graham's essays, for the tasks {', '.join(IN_ESSAYS)}."
    )
    tasks: list[str] | None = Field(
        default=None,
        min_length=1,
        description="Names of synthetic.yaml; default: all but those that need a haystack that is not given, and qa.",
    )
    lengths: list[Annotated[int, Field(ge=1, le=LONGEST)]] = Field(
        default=[4096, 8192, 16_384, 32_768],
        min_length=1,
        description="Tokens of question and answer, by the base model's tokenizer.",
    )
    samples: int = Field(default=50, ge=1, le=100_000, description="Of each task and length; published: 500.")
    seed: int = Field(default=42, ge=0, lt=MOST_SEEDS)

    @property
    def names(self) -> tuple[str, ...]:
        """The tasks."""
        wanted = self.tasks or (OFFLINE if self.haystack is None else (*OFFLINE, *IN_ESSAYS))
        return tuple(dict.fromkeys(wanted))


def _paths(options: RulerOptions) -> list[str] | None:
    return None if options.official is None else [f"{options.official}/{name}" for name in _FILES]


def read_tasks(config: Config, options: RulerOptions) -> tuple[list[Task], str, str]:
    """The tasks as published, the needle's text and the noise. Raises GateauError where they are not there."""
    settings, constants, code = question_files(config, OFFICIAL, _paths(options), cure=CURE)
    (kinds,) = assigned(constants, "TASKS", OFFICIAL)
    described = yaml.safe_load(text_of(settings, OFFICIAL))
    tasks = []
    for name in options.names:
        found = described[name]
        kind = kinds[found["task"]]
        tasks.append(
            Task(
                name=name,
                kind=found["task"],
                template=kind["template"],
                prefix=kind["answer_prefix"],
                answer_tokens=kind["tokens_to_generate"],
                arguments=found["args"],
            )
        )
    needle, noise = (next(text for text in assigned(code, name, OFFICIAL)) for name in ("needle", "haystack"))
    return tasks, needle, noise


@cache
def words() -> Words:
    """Those of the package wonderwords, which RULER takes. Raises GateauError where it is not installed."""
    if find_spec("wonderwords") is None:
        raise GateauError(
            "evaluation.ruler: its words come from the package wonderwords, which is not installed: "
            "pip install 'gateau-dagster[evaluation]'"
        )
    lists = (package_files("wonderwords") / "assets" / f"{kind}list.txt" for kind in ("noun", "adjective", "verb"))
    texts = (each.read_text(encoding="utf-8").splitlines() for each in lists)
    nouns, adjectives, verbs = (sorted({line.rstrip() for line in text if line.strip()}) for text in texts)
    return Words(nouns=nouns, adjectives=adjectives, verbs=verbs)


def largest(size: int, fits: Callable[[int], bool]) -> int:
    """The largest size that fits, between `size` and 2^24, if each smaller one does; 0 where not even `size` does."""
    if not fits(size):
        return 0
    low, high = size, 2 * size
    while high < 2**24 and fits(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def samples_of(
    task: Task, material: Material, options: RulerOptions, *, length: int, count: Callable[[str], int]
) -> Iterator[Made]:
    """`options.samples` samples that have at most `length` tokens with their answer, and hardly fewer.

    count: tokens of a text. Raises GateauError for a length that has no room.
    """
    room, make = length - task.answer_tokens, partial(MAKERS[task.kind], task, material)

    def made(index: int, size: int) -> Made:
        return make(random.Random(f"{options.seed}:{task.name}:{length}:{index}"), size)

    def fits(index: int, size: int) -> bool:
        sample = made(index, size)
        return count(sample.text + sample.prefix) <= room

    least, most = _sizes(task, material)
    size = largest(least, lambda size: size <= most and fits(0, size))
    for index in range(options.samples):
        own = size
        while own >= least and not fits(index, own):
            own -= max(1, own // 100)
        if own < least:
            raise GateauError(f"evaluation.ruler.lengths: {task.name} does not fit into {length} tokens: raise it")
        yield made(index, own)


def _sizes(task: Task, material: Material) -> tuple[int, int]:
    """The least and the largest size that a task can be made in."""
    given = task.arguments
    if task.kind == "niah":
        return max(given["num_needle_k"], given["num_needle_q"]) * given["num_needle_v"], 2**24
    if task.kind == "variable_tracking":
        return given["num_hops"] + 1, 2**24
    if task.kind == "common_words_extraction":
        return given["num_cw"], len(material.words.all)
    return 100, 2**24


def _questions(materials: Materials, options: RulerOptions) -> list[Question]:
    """The same for every variant: tokens are counted with the base model's tokenizer."""
    tasks, needle, noise = read_tasks(materials.config, options)
    tokenizer: Any = base_tokenizer(materials)

    def count(text: str) -> int:
        return len(tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])

    essays = [] if options.haystack is None else [*_sentences(materials.config, options)]
    known, found = words(), []
    lengths = lengths_within(options.lengths, materials.config.scoring.max_length)
    total = len(tasks) * len(lengths) * options.samples
    for length in lengths:
        material = Material(needle=needle, noise=noise, words=known, sentences=essays, longest=length)
        for task in tasks:
            own = _with_example(task, material, options, count) if task.kind == "variable_tracking" else material
            made = samples_of(task, own, options, length=length, count=count)
            found += [_question(task, length, index, each) for index, each in enumerate(made)]
            materials.progress(len(found), total, "questions", "making")
    return found


def _with_example(task: Task, material: Material, options: RulerOptions, count: Callable[[str], int]) -> Material:
    """With an example of up to 500 tokens."""

    def fits(size: int) -> bool:
        made = chains(task, material, random.Random(options.seed), size)
        return count(made.text + made.prefix) <= _EXAMPLE_TOKENS

    least = task.arguments["num_hops"] + 1
    return Material(**{**vars(material), "example": max(least, largest(least, fits))})


def _question(task: Task, length: int, index: int, made: Made) -> Question:
    return Question(
        question_id=f"{task.name}/{length}/{index}",
        group=f"{task.name}/{length}",
        turns=(made.text,),
        prefill=made.prefix,
        generation=Generation(max_new_tokens=task.answer_tokens),
        references=made.answers,
        facts={"length": length},
    )


def _sentences(config: Config, options: RulerOptions) -> Iterator[str]:
    for file in question_files(config, HAYSTACK, options.haystack, cure="give text files", plain_texts=True):
        yield from (" ".join(each.split()) for each in sentences_of(text_of(file, HAYSTACK)) if each.strip())


def grade(
    questions: Sequence[Question], answers: pl.DataFrame, judgments: pl.DataFrame | None, options: RulerOptions
) -> Measured:
    """Per cent of the right answers that stand in the answer."""
    del judgments, options
    return grade_each(questions, answers, lambda question, answer: 100 * share_contained(answer, question.references))


def _settings(config: Config, options: RulerOptions) -> Mapping[str, Any]:
    found = {OFFICIAL: files_digest(config, OFFICIAL, _paths(options), cure=CURE)}
    if options.haystack is not None:
        found[HAYSTACK] = files_digest(config, HAYSTACK, options.haystack, cure="give text files", plain_texts=True)
    return found


def _check(config: Config, options: RulerOptions) -> None:
    """Raises GateauError for files or words that are not there, and for tasks that cannot be made."""
    check_files(config, OFFICIAL, _paths(options), cure=CURE)
    unknown = [name for name in options.names if name not in {*OFFLINE, *IN_ESSAYS}]
    if unknown:
        known = ", ".join((*OFFLINE, *IN_ESSAYS))
        raise GateauError(f"evaluation.ruler.tasks: {unknown[0]!r} is not among those that are made here: {known}")
    in_essays = [name for name in options.names if name in IN_ESSAYS]
    if in_essays and options.haystack is None:
        raise GateauError(f"{HAYSTACK}: is required by {', '.join(in_essays)}: give text files, or leave the tasks out")
    if options.haystack is not None:
        check_files(config, HAYSTACK, options.haystack, cure="give text files", plain_texts=True)
    given = "lengths" in options.model_fields_set
    check_lengths("evaluation.ruler.lengths", options.lengths, config.scoring.max_length, given=given)
    words()


def _task_of(question_id: str) -> str:
    return question_id.split("/", maxsplit=1)[0]


def _length_of(question_id: str) -> str:
    return question_id.split("/")[1]


BENCHMARK = Benchmark(
    name="ruler",
    title="RULER",
    description="Needles, chains of variables and most common words in prompts made to a length.",
    options=RulerOptions,
    settings=_settings,
    check=_check,
    scored=Scored(unit="%", groupings={"task": _task_of, "length": _length_of}, questions=_questions, grade=grade),
)
