"""RULER (Hsieh et al. 2024): needles, chains of variables, common words, questions over documents, made to measure.

The texts and settings of its tasks are read from its repository (NVIDIA/RULER, Apache 2.0); the samples are our own.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from importlib.resources import files as package_files
from importlib.util import find_spec
from typing import TYPE_CHECKING, Annotated, Any

import polars as pl
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
from gateau_dagster.evaluation.question_files import check_files, files_digest, question_files, text_of, yaml_of
from gateau_dagster.evaluation.question_tokens import base_tokenizer, check_lengths, lengths_within
from gateau_dagster.evaluation.questions import Generation, Question
from gateau_dagster.evaluation.ruler_documents import OVER, corpus_cure, corpus_place, read_corpus
from gateau_dagster.evaluation.ruler_tasks import (
    MAKERS,
    OVER_DOCUMENTS,
    Made,
    Material,
    Task,
    Words,
    chains,
    least_size,
)
from gateau_dagster.evaluation.scored import Measured, Scored

if TYPE_CHECKING:
    from gateau_dagster.config import Config

OFFICIAL, HAYSTACK = "evaluation.ruler.official", "evaluation.ruler.haystack"
CURE = "clone https://github.com/NVIDIA/RULER, and give its path"
_SYNTHETIC = "scripts/data/synthetic"
_FILES = ("scripts/synthetic.yaml", *(f"{_SYNTHETIC}/{name}.py" for name in ("constants", "niah", "qa")))
_EXAMPLE_TOKENS = 500
OFFLINE = ("niah_single_1", "niah_multikey_2", "niah_multikey_3", "vt", "cwe", "fwe")
IN_ESSAYS = ("niah_single_2", "niah_single_3", "niah_multikey_1", "niah_multivalue", "niah_multiquery")


class RulerOptions(Section):
    """Which of RULER's tasks are made, how long and how many."""

    official: InputAddress | None = Field(default=None, description="The folder of RULER's repository.")
    haystack: InputAddresses | None = Field(
        default=None, description=f"Text files, such as Paul Graham's essays, for the tasks {', '.join(IN_ESSAYS)}."
    )
    squad: InputAddress | None = Field(default=None, description="SQuAD's dev-v2.0.json, for the task qa_1.")
    hotpotqa: InputAddress | None = Field(
        default=None, description="HotpotQA's hotpot_dev_distractor_v1.json, for the task qa_2."
    )
    tasks: list[str] | None = Field(
        default=None,
        min_length=1,
        description="Names of synthetic.yaml; default: all but those that need files that are not given.",
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
        if self.tasks is not None:
            return tuple(dict.fromkeys(self.tasks))
        over = (task for task, name in OVER.items() if getattr(self, name) is not None)
        return (*OFFLINE, *(() if self.haystack is None else IN_ESSAYS), *over)

    @property
    def corpora(self) -> dict[str, str | None]:
        """The files of the questions over documents that are asked, by their options."""
        return {OVER[name]: getattr(self, OVER[name]) for name in self.names if name in OVER}


def _paths(options: RulerOptions) -> list[str] | None:
    return None if options.official is None else [f"{options.official}/{name}" for name in _FILES]


def read_tasks(config: Config, options: RulerOptions) -> tuple[list[Task], Material]:
    """The tasks as published, and of what they are made the needle, the noise, the words and a document's frame.

    Raises GateauError where they are not there.
    """
    settings, constants, code, over = question_files(config, OFFICIAL, _paths(options), cure=CURE)
    (kinds,) = assigned(constants, "TASKS", OFFICIAL)
    described = yaml_of(settings, OFFICIAL)
    try:
        tasks = [Task.published(name, described[name], kinds) for name in options.names]
    except (KeyError, TypeError) as error:
        raise GateauError(f"{OFFICIAL}: {settings.label} and its code lack {error} of the tasks; {CURE}") from error
    needle, noise, document = (
        assigned(file, name, OFFICIAL)[0]
        for file, name in ((code, "needle"), (code, "haystack"), (over, "DOCUMENT_PROMPT"))
    )
    return tasks, Material(needle=needle, noise=noise, words=words(), document=document)


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
    room, make = length - task.answer_tokens, MAKERS[task.kind]

    def made(index: int, size: int) -> Made:
        rng = random.Random(f"{options.seed}:{task.name}:{length}:{index}")
        return make(task, replace(material, number=index), rng, size)

    def fits(index: int, size: int) -> bool:
        sample = made(index, size)
        return count(sample.text + sample.prefix) <= room

    least, most = least_size(task, material), 2**24
    if task.kind == "common_words_extraction":
        most = len(material.words.all)
    size = largest(least, lambda size: size <= most and fits(0, size))
    for index in range(options.samples):
        own = size
        while own >= least and not fits(index, own):
            own -= max(1, own // 100)
        if own < least:
            raise GateauError(f"evaluation.ruler.lengths: {task.name} does not fit into {length} tokens: raise it")
        yield made(index, own)


def _questions(materials: Materials, options: RulerOptions) -> list[Question]:
    """The same for every variant: tokens are counted with the base model's tokenizer."""
    tasks, common = read_tasks(materials.config, options)
    tokenizer: Any = base_tokenizer(materials)

    def count(text: str) -> int:
        return len(tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])

    essays = [] if options.haystack is None else [*_sentences(materials.config, options)]
    corpora = {name: read_corpus(materials.config, name, path) for name, path in options.corpora.items()}
    found: list[Question] = []
    lengths = lengths_within(options.lengths, materials.config.scoring.max_length)
    total = len(tasks) * len(lengths) * options.samples
    for length in lengths:
        material = replace(common, sentences=essays, corpora=corpora, longest=length)
        for task in tasks:
            own = _with_example(task, material, options, count) if task.kind == "variable_tracking" else material
            made = samples_of(task, own, options, length=length, count=count)
            found += [_question(task, length, index, each) for index, each in enumerate(made)]
            materials.progress(len(found), total, "questions", "making")
    return found


def _probe(materials: Materials, options: RulerOptions) -> None:
    """See Scored.probe."""
    read_tasks(materials.config, options)


def _sizes(config: Config, options: RulerOptions) -> list[tuple[float, float]]:
    """See Scored.sizes: a prompt fills its length up to the answer."""
    lengths = lengths_within(options.lengths, config.scoring.max_length)
    tasks, _ = read_tasks(config, options)
    each = [(float(length - task.answer_tokens), float(task.answer_tokens)) for length in lengths for task in tasks]
    return [size for size in each for _ in range(options.samples)]


def _with_example(task: Task, material: Material, options: RulerOptions, count: Callable[[str], int]) -> Material:
    """With an example of up to 500 tokens."""

    def fits(size: int) -> bool:
        made = chains(task, material, random.Random(options.seed), size)
        return count(made.text + made.prefix) <= _EXAMPLE_TOKENS

    least = task.arguments["num_hops"] + 1
    return replace(material, example=max(least, largest(least, fits)))


def _question(task: Task, length: int, index: int, made: Made) -> Question:
    return Question(
        question_id=f"{task.name}/{length}/{index}",
        group=f"{task.name}/{length}",
        turns=(made.text,),
        prefill=made.prefix,
        generation=Generation(max_new_tokens=task.answer_tokens),
        references=made.answers,
        facts={"length": length, "one_suffices": task.kind == OVER_DOCUMENTS},
    )


def _sentences(config: Config, options: RulerOptions) -> Iterator[str]:
    for file in question_files(config, HAYSTACK, options.haystack, cure="give text files", plain_texts=True):
        yield from (" ".join(each.split()) for each in sentences_of(text_of(file, HAYSTACK)) if each.strip())


def grade(
    questions: Sequence[Question], answers: pl.DataFrame, judgments: pl.DataFrame | None, options: RulerOptions
) -> Measured:
    """`value_of` each question."""
    del judgments, options
    return grade_each(questions, answers, value_of)


def value_of(question: Question, answer: str) -> float:
    """Per cent of the right answers that stand in the answer; over documents one of them is enough."""
    share = share_contained(answer, question.references)
    return 100.0 * (share > 0) if question.facts["one_suffices"] else 100 * share


def _settings(config: Config, options: RulerOptions) -> Mapping[str, Any]:
    found = {OFFICIAL: files_digest(config, OFFICIAL, _paths(options), cure=CURE)}
    if options.haystack is not None:
        found[HAYSTACK] = files_digest(config, HAYSTACK, options.haystack, cure="give text files", plain_texts=True)
    for name, path in options.corpora.items():
        found[corpus_place(name)] = files_digest(config, corpus_place(name), path, cure=corpus_cure(name))
    return found


def _check(config: Config, options: RulerOptions) -> None:
    """Raises GateauError for files or words that are not there, and for tasks that cannot be made."""
    check_files(config, OFFICIAL, _paths(options), cure=CURE)
    known_tasks = (*OFFLINE, *IN_ESSAYS, *OVER)
    unknown = [name for name in options.names if name not in known_tasks]
    if unknown:
        known = ", ".join(known_tasks)
        raise GateauError(f"evaluation.ruler.tasks: {unknown[0]!r} is not among those that are made here: {known}")
    in_essays = [name for name in options.names if name in IN_ESSAYS]
    if in_essays and options.haystack is None:
        raise GateauError(f"{HAYSTACK}: is required by {', '.join(in_essays)}: give text files, or leave the tasks out")
    if options.haystack is not None:
        check_files(config, HAYSTACK, options.haystack, cure="give text files", plain_texts=True)
    for name, path in options.corpora.items():
        check_files(config, corpus_place(name), path, cure=corpus_cure(name))
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
    description="Needles, chains of variables, most common words and questions over documents in prompts made to a "
    "length.",
    options=RulerOptions,
    settings=_settings,
    check=_check,
    scored=Scored(
        unit="%",
        by_base=True,
        groups="task and length",
        groupings={"length": _length_of, "task": _task_of},
        questions=_questions,
        grade=grade,
        sizes=_sizes,
        probe=_probe,
    ),
    code_version="2",
)
