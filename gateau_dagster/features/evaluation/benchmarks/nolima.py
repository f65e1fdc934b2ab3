"""NoLiMa (Modarressi et al. 2025): a needle that shares no words with its question, in up to 32k tokens; no judge.

The needle sets may be used for noncommercial research only (Adobe Research License): users read their own copy.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

import numpy as np
from pydantic import Field

from gateau_dagster.config.base import Section
from gateau_dagster.config.values import LONGEST, InputAddress, InputAddresses
from gateau_dagster.errors import GateauError
from gateau_dagster.features.evaluation.benchmark import Generation, Materials, Question, QuestionBenchmark, id_part
from gateau_dagster.features.evaluation.question_files import (
    OfficialRow,
    QuestionFiles,
    by_id,
    check_lengths,
    lengths_within,
    template_gaps,
)
from gateau_dagster.models.prompt import encode

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

SOURCE = "https://huggingface.co/datasets/amodaresi/NoLiMa"
NEEDLES_CURE = (
    f"download needlesets/needle_set.json of {SOURCE}, whose license allows noncommercial research only, and give its "
    "path"
)
HAYSTACK_CURE = f"download the folder haystack/rand_shuffle of {SOURCE}, and give its path"
ANSWER_TOKENS, RESERVED = 192, 320
"""Most tokens of an answer, and tokens that needle, request and chat template take beside the book."""
SEED, CHARACTER = 42, "{CHAR}"
BASE_LENGTHS, KEPT, LEAST_EFFECTIVE = (250, 500, 1000), 0.85, 1000
"""Lengths of the base score; the share of it that scores keep up to the effective length, from 1,000."""
Metric = Literal["contains", "EM", "lastline_contains", "lastline_EM"]


def names(answer: str, right: str, metric: Metric) -> bool:
    """Return whether the answer, or its last line, contains the right name or is the name."""
    said = answer.strip()
    if metric.startswith("lastline"):
        said = said.rpartition("\n")[2]
    return right in said if metric.endswith("contains") else said == right


class NoLiMaOptions(Section):
    """The section `evaluation.nolima` of the configuration; the files are the authors'."""

    needles: InputAddress | None = Field(
        default=None,
        description="Path of needle_set.json, or of another published set without distractors.",
        examples=["NoLiMa/needlesets/needle_set.json"],
    )
    haystack: InputAddresses | None = Field(
        default=None, description="The folder of the books, as text files.", examples=["NoLiMa/haystack/rand_shuffle"]
    )
    lengths: list[Annotated[int, Field(ge=1, le=LONGEST)]] = Field(
        default=[250, 500, 1000, 2000, 4000, 8000, 16_000, 32_000],
        min_length=1,
        description="Tokens of the book in a prompt, by the base model's tokenizer.",
    )
    placements: int = Field(
        default=26,
        ge=2,
        description="Depths of each needle, from the start to the end. The published set has 58 questions, each asked "
        "at all lengths and depths in all books: 60,320 prompts.",
    )
    metric: Metric = Field(
        default="contains",
        description="Whether the answer contains the right name or equals it (EM); lastline_ reads its last line only, "
        "for needle_set_w_CoT.json.",
    )


@dataclass(frozen=True, kw_only=True)
class NeedleTest:
    """A needle and a question about it. frame: the prompt with {haystack} and {question}."""

    name: str
    seed: int
    system: str
    frame: str
    needle: str
    question: str
    characters: tuple[str, ...]


def read_tests(files: QuestionFiles) -> list[NeedleTest]:
    """Return every question of a needle set with every of its inputs. Raises GateauError for another file."""
    with files.understood():
        return [test for name, row in by_id(files.rows(one=True), "id") for test in _tests(name, row)]


def _tests(name: str, row: OfficialRow) -> Iterator[NeedleTest]:
    frame, needle, number = row.text("task_template"), row.text("needle"), re.match(r"\d{4}", name)
    if {*template_gaps(frame)} != {"haystack", "question"}:
        raise row.wrong("task_template has other gaps", "{haystack} and {question}")
    if "distractors" in row.value:
        raise row.wrong("it has distractors, which are not placed here", "another published set")
    if number is None or CHARACTER not in needle:
        raise row.wrong(f"its id {name[:60]!r} lacks a number, or its needle {CHARACTER}", "the published needles")
    questions, tests = row.inner("questions"), row.inner("tests")
    for test in tests.value:
        given = tests.inner(test).texts("input_args")
        for hops in questions.value:
            texts = (needle, questions.text(hops))
            for place, text in enumerate(given, start=1):
                texts = tuple(each.replace(f"{{{place}}}", text) for each in texts)
            if gap := re.search(r"\{\d+\}", "".join(texts)):
                raise row.wrong(f"{test} has no input for {gap[0]}", "an input for every gap")
            yield NeedleTest(
                name=f"{name}/{test}/{hops}",
                seed=SEED + int(number[0]),
                system=row.text("system_prompt", empty=True),
                frame=frame,
                needle=texts[0],
                question=texts[1],
                characters=row.texts("character_set"),
            )


@dataclass(frozen=True, kw_only=True)
class Book:
    """The tokens of a book. breaks: the first token, and those that contain a line break."""

    label: str
    tokenizer: PreTrainedTokenizerBase
    ids: list[int]
    breaks: Sequence[int]

    @classmethod
    def read(cls, label: str, tokenizer: PreTrainedTokenizerBase, text: str) -> Book:
        """Return the book of a text."""
        ids = [*encode(tokenizer, text)]
        broken = {each for each in {*ids} if "\n" in str(tokenizer.decode([each]))}
        breaks = [0, *(place for place, each in enumerate(ids) if each in broken)]
        return cls(label=label, tokenizer=tokenizer, ids=ids, breaks=breaks)

    def around(self, *, length: int, depth: float) -> tuple[str, str]:
        """Return the texts before and after a needle, `length` tokens in all, less the line that the needle replaces.

        The needle is at the first line break from the depth on, and the snippet begins so that this place has the
        depth. Raises GateauError for a book that is too short.
        """
        place = bisect_left(self.breaks, depth, key=lambda each: each / (length + 1))
        at = self.breaks[place] if place < len(self.breaks) else len(self.ids)
        start = at - round(length * depth)
        if place == len(self.breaks) or start + length > len(self.ids):
            raise GateauError(
                "evaluation.length",
                f"evaluation.nolima.lengths: {self.label} has {len(self.ids):,} tokens, too few for {length:,} around "
                f"a line break at depth {depth:g}: give shorter lengths, or longer books",
            )
        before = str(self.tokenizer.decode(self.ids[start : at + 1]))
        return before[: max(before.rfind("\n"), 0)], str(self.tokenizer.decode(self.ids[at + 1 : start + length]))


def base_score(values: Mapping[str, float]) -> float | None:
    """Return the mean over needle and question of the best mean value at BASE_LENGTHS; None without these lengths."""
    found: defaultdict[str, defaultdict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for name, value in values.items():
        length, _, test = name.split("/", 2)
        if int(length) in BASE_LENGTHS:
            found[test.rpartition("/")[0]][length].append(value)
    return fmean(max(map(fmean, each.values())) for each in found.values()) if found else None


def order_of(question_id: str) -> str:
    """Return `inverted` if the needle names the character after what is asked for, else `default`."""
    return "inverted" if id_part(2)(question_id).endswith("Inv") else "default"


class NoLiMa(QuestionBenchmark):
    """NoLiMa: who of several characters has a property that the needle only implies."""

    name = "nolima"
    title = "NoLiMa"
    description = "A fact in a book that shares no words with the question about it, by the share of right names."
    options: NoLiMaOptions
    unit = "%"
    by_base = True
    groups = "length"
    groupings: ClassVar = {"hops": id_part(4), "order": order_of}
    official: ClassVar = {"needles": NEEDLES_CURE, "haystack": HAYSTACK_CURE}
    plain_texts = ("haystack",)

    def check(self) -> None:
        """Raise GateauError for missing files, and for lengths that no prompt may have."""
        super().check()
        given = "lengths" in self.options.model_fields_set
        check_lengths(self.place("lengths"), self.options.lengths, self._longest, given=given)

    def questions(self, materials: Materials) -> list[Question]:
        """Return each question of the set at each length and depth of each book; answers are greedy.

        Ids consist of length, depth in per cent, the needle's id, the inputs' name, the kind of question and the book's
        number. Places and characters are the published ones, for books in order of name. The published code always
        sends its own system message; here the set's message is sent, which is empty.

        Raises:
            GateauError: a file cannot be read, is not the published one, or is too short.
        """
        tests, books, questions = read_tests(self.file("needles")), [*self._books(materials)], list[Question]()
        depths, lengths = np.linspace(0, 100, self.options.placements), self._lengths
        total = len(lengths) * len(books) * len(depths) * len(tests)
        for length, (number, book) in ((each, pair) for each in lengths for pair in enumerate(books)):
            draws = [np.random.RandomState(test.seed + number) for test in tests]
            for depth in depths:
                before, after = book.around(length=length, depth=depth / 100)
                for test, draw in zip(tests, draws, strict=True):
                    character = str(draw.choice(test.characters))
                    needle, asked = (text.replace(CHARACTER, character) for text in (test.needle, test.question))
                    text = test.frame.format(haystack=f"{before} {needle}\n{after}", question=asked)
                    question = Question(
                        question_id=f"{length}/{depth:g}/{test.name}/{number + 1}",
                        group=str(length),
                        turns=(text,),
                        generation=Generation(max_new_tokens=ANSWER_TOKENS),
                        system=test.system,
                        references=(character,),
                    )
                    questions.append(question)
            materials.progress(len(questions), total, "questions", "making")
        return questions

    def value(self, question: Question, answer: str) -> float:
        """Return 100 for an answer with the right name, by the metric of the options; else 0."""
        return 100.0 * names(answer, question.references[0], self.options.metric)

    def remark(self, values: Mapping[str, float]) -> str:
        """Return the base score and the effective length."""
        base, by_length = base_score(values), defaultdict[int, list[float]](list)
        if base is None:
            return ""
        for name, value in values.items():
            by_length[int(id_part(0)(name))].append(value)
        kept = [each for each, of in by_length.items() if each >= LEAST_EFFECTIVE and fmean(of) >= KEPT * base]
        effective = f"effective length {max(kept):,}" if kept else f"effective length below {LEAST_EFFECTIVE:,}"
        return f"base score {base:.1f} %, {effective} tokens (the longest with at least {100 * KEPT:.0f} % of it)"

    def probe(self, materials: Materials) -> None:
        """Read the needles, and place one at the end of the longest snippet of every book."""
        read_tests(self.file("needles"))
        for book in self._books(materials):
            book.around(length=max(self._lengths), depth=1.0)

    def sizes(self) -> list[tuple[float, float]]:
        """Return the tokens of each prompt and of its longest answer."""
        each = len(read_tests(self.file("needles"))) * len(self.file("haystack").find()) * self.options.placements
        return [(float(length + RESERVED), float(ANSWER_TOKENS)) for length in self._lengths for _ in range(each)]

    def cell(self, question_id: str) -> tuple[int, float]:
        length, depth, *_ = question_id.split("/")
        return int(length), float(depth) / 100

    @property
    def _longest(self) -> int:
        return self.config.scoring.max_length - ANSWER_TOKENS - RESERVED

    @property
    def _lengths(self) -> list[int]:
        return lengths_within(self.options.lengths, self._longest)

    def _books(self, materials: Materials) -> Iterator[Book]:
        tokenizer, haystack = materials.base_tokenizer(), self.file("haystack")
        for file in haystack.find():
            yield Book.read(file.label, tokenizer, haystack.text(file))
