"""LongAlign's needle in a haystack: 1k to 60k tokens by 10 to 90 % depth, by exact match or by a judge."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from gateau_dagster.config.base import Section
from gateau_dagster.config.values import LONGEST, InputAddress, InputAddresses
from gateau_dagster.errors import GateauError
from gateau_dagster.features.evaluation.benchmark import (
    Generation,
    JudgeRequest,
    Materials,
    Question,
    QuestionBenchmark,
)
from gateau_dagster.features.evaluation.grading import normalised_words
from gateau_dagster.features.evaluation.judged import RatedBenchmark
from gateau_dagster.features.evaluation.question_files import (
    QuestionFiles,
    check_lengths,
    lengths_within,
    template_gaps,
)
from gateau_dagster.models.prompt import encode
from gateau_dagster.storage.stamp import By

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


RESERVED = 200
"""Tokens of a prompt that are reserved for question and answer."""
_STOPS = (".", "。")


@dataclass(frozen=True, kw_only=True)
class NeedleText:
    """A hidden text and its question. frame: the prompt with {context} and {question}."""

    needle: str
    question: str
    frame: str

    @cached_property
    def key(self) -> list[str]:
        """Return the words that an answer must contain: the needle from its first word that is not in the question."""
        asked, words = {*normalised_words(self.question)}, normalised_words(self.needle)
        first = next((place for place, word in enumerate(words) if word not in asked), 0)
        return words[first:]

    def prompt(self, context: str) -> str:
        """Return the context in its frame, with the question."""
        before, after = self.frame.split("{context}")
        return before.replace("{question}", self.question) + context + after.replace("{question}", self.question)


def holds(answer: str, key: Sequence[str]) -> bool:
    """Return whether the key's words occur in a row in the answer, ignoring case and punctuation."""
    return f" {' '.join(key)} " in f" {' '.join(normalised_words(answer))} "


@dataclass(frozen=True, kw_only=True)
class RunningText:
    """The first tokens of a text, and the tokens that end a sentence."""

    tokenizer: PreTrainedTokenizerBase
    ids: tuple[int, ...]

    @cached_property
    def stops(self) -> frozenset[int]:
        """Return the tokens of a full stop, which depend on the text before it."""
        ends = (encode(self.tokenizer, f"{before}{stop}")[-1:] for stop in _STOPS for before in ("", "a", "好"))
        return frozenset(
            token for end in ends for token in end if str(self.tokenizer.decode([token])).strip() in _STOPS
        )

    def with_needle(self, needle: str, *, length: int, depth: int) -> str:
        """Return the text cut to `length` tokens, less RESERVED, needle included.

        The needle follows the last full stop among the first `depth` per cent of the other tokens. Without a full stop
        it is at the beginning; with depth 100 it is at the end. Raises GateauError for a length without room.
        """
        hidden = encode(self.tokenizer, needle)
        room = length - RESERVED - len(hidden)
        if room <= 0:
            raise GateauError(
                "evaluation.length",
                f"evaluation.generated_needle.lengths: {length} tokens leave no room for text: the needle takes "
                f"{len(hidden)}, question and answer {RESERVED}; raise it",
            )
        text = self.ids[:room]
        place = len(text) if depth == 100 else int(len(text) * (depth / 100))
        while depth != 100 and place and text[place - 1] not in self.stops:
            place -= 1
        return str(self.tokenizer.decode([*text[:place], *hidden, *text[place:]], skip_special_tokens=True))


def running_text(tokenizer: PreTrainedTokenizerBase, texts: Iterable[str], *, tokens: int) -> RunningText:
    """Join the texts, and repeat them until there are `tokens` tokens.

    Raises GateauError if there is no text.
    """
    known: list[tuple[str, int]] = []
    taken, count = "", 0
    for text in texts:
        known.append((text, len(encode(tokenizer, text))))
        taken, count = taken + text, count + known[-1][1]
        if count >= tokens:
            break
    if count == 0:
        raise GateauError(
            "evaluation.no_text",
            "evaluation.generated_needle.haystack: the files contain no text for the haystack: give others",
        )
    taken *= -(-tokens // count)
    return RunningText(tokenizer=tokenizer, ids=encode(tokenizer, taken)[:tokens])


CURE = "clone https://github.com/THUDM/LongAlign, and give the path of its folder Needle_test"
_CONFIG, _CODE, _ESSAYS = "config-prompt.yaml", "prompt.py", "PaulGrahamEssays"
_OWN = NeedleText(
    needle="\nThe best-kept secret of the harbour museum is a brass clock that runs backwards at full moon.\n",
    question="What is the best-kept secret of the harbour museum?",
    frame="{context}\n\nAnswer in one sentence, from the text above: {question}",
)
_DOCUMENTS = 256


class GeneratedNeedleOptions(Section):
    """A sentence hidden at a depth of a text of some length, after the end of a sentence, and asked for at the end."""

    official: InputAddress | None = Field(
        default=None,
        description="LongAlign's folder Needle_test: its needle, its question and its essays.",
        examples=["LongAlign"],
    )
    haystack: InputAddresses | None = Field(
        default=None,
        description="Text files to hide it in; default: LongAlign's essays, else the project's documents.",
        examples=["essays/*.txt"],
    )
    lengths: list[Annotated[int, Field(ge=1, le=LONGEST)]] = Field(
        default=[1000, 7556, 14111, 20667, 27222, 33778, 40333, 46889, 53444, 60000],
        min_length=1,
        description="Tokens, by the base model's tokenizer; 200 of them are for question and answer.",
    )
    depths: list[Annotated[int, Field(ge=0, le=100)]] = Field(
        default=[10, 19, 28, 37, 46, 54, 63, 72, 81, 90],
        min_length=1,
        description="Places of the needle, in per cent of the text before it.",
    )
    answer_tokens: int = Field(default=1024, ge=1, description="Most tokens of an answer.")

    @property
    def reads_documents(self) -> bool:
        """Return whether the needle is hidden in the project's own documents."""
        return self.official is None and self.haystack is None


class GeneratedNeedleQuestions(QuestionBenchmark):
    """LongAlign's needle questions, for exact match and for a judge."""

    options: GeneratedNeedleOptions
    by_base = True
    groups = "length and depth"

    def reads(self) -> Mapping[str, By]:
        return {"raw_long_sft": "fingerprint"} if self.options.reads_documents else {}

    def files(self) -> Sequence[QuestionFiles]:
        official = [] if self.options.official is None else [self._official(_CONFIG, _CODE)]
        return [*super().files(), *official, *([] if self.options.reads_documents else [self._haystack()])]

    def check(self) -> None:
        """Raise GateauError for missing files and for lengths that no prompt may have."""
        super().check()
        lengths, place = self.options.lengths, self.place("lengths")
        short = [length for length in lengths if length <= RESERVED]
        if short:
            raise GateauError(
                "evaluation.length",
                f"{place}: {min(short)} tokens leave no room for text: question and answer take {RESERVED}; raise it",
            )
        check_lengths(place, lengths, self._longest, given="lengths" in self.options.model_fields_set)

    def questions(self, materials: Materials) -> list[Question]:
        """Return one question per cell, the same for every variant: the base model's tokenizer counts the lengths."""
        text, lengths = self.needle(), lengths_within(self.options.lengths, self._longest)
        hay = running_text(materials.base_tokenizer(), self._texts(materials), tokens=max(lengths))
        return [
            Question(
                question_id=f"{length}/{depth}",
                group=f"{length}/{depth}",
                turns=(text.prompt(hay.with_needle(text.needle, length=length, depth=depth)),),
                generation=Generation(max_new_tokens=self.options.answer_tokens),
                references=(text.needle,),
                facts={"key": text.key, "length": length, "depth": depth},
            )
            for length in lengths
            for depth in sorted({*self.options.depths})
        ]

    def needle(self) -> NeedleText:
        """Return the needle and its question. Raises GateauError if the official files are missing or differ."""
        if self.options.official is None:
            return _OWN
        files = self._official(_CONFIG, _CODE)
        settings, code = files.find()
        texts = files.texts_in(code, "generate_prompt")
        contents = [number for number, text in enumerate(texts) if text == "content"]
        prompt = files.mapping(settings).get("prompt")
        if not isinstance(prompt, dict) or not {"needle", "retrieval_question"} <= {*prompt}:
            raise files.wrong(f"{settings.label} is not the published file")
        if len(contents) != 2 or len(texts) != contents[1] + 3:
            raise files.wrong(f"{code.label} is not the published file")
        system, asked = texts[contents[0] + 1], "".join(texts[contents[1] + 1 :])
        return NeedleText(
            needle=prompt["needle"],
            question=prompt["retrieval_question"],
            frame=f"{system}\n{{context}}{asked}{{question}}",  # pred.py joins the system's text and the user's
        )

    def probe(self, materials: Materials) -> None:
        """Prepare a haystack of one token and the needle, so that missing or wrong input raises an error early."""
        text = self.needle()
        hay = running_text(materials.base_tokenizer(), self._texts(materials), tokens=1)
        hay.with_needle(text.needle, length=min(self.options.lengths), depth=100)

    def sizes(self) -> list[tuple[float, float]]:
        """Return the tokens of each question and of its longest answer."""
        lengths = lengths_within(self.options.lengths, self._longest)
        return [
            (float(length), float(self.options.answer_tokens)) for length in lengths for _ in {*self.options.depths}
        ]

    def cell(self, question_id: str) -> tuple[int, float]:
        length, depth = question_id.split("/")
        return int(length), int(depth) / 100

    @property
    def _longest(self) -> int:
        return self.config.scoring.max_length - self.options.answer_tokens

    def _official(self, *names: str, key: str = "") -> QuestionFiles:
        folder, place = self.options.official, self.place("official")
        paths = None if folder is None else [f"{folder}/{name}" for name in names]
        return QuestionFiles(config=self.config, place=place, path=paths, cure=CURE, key=key)

    def _haystack(self) -> QuestionFiles:
        paths = self.options.haystack
        if paths is None and self.options.official is not None:
            paths = f"{self.options.official}/{_ESSAYS}"
        return QuestionFiles(config=self.config, place=self.place("haystack"), path=paths, cure=CURE, plain_texts=True)

    def _texts(self, materials: Materials) -> Iterator[str]:
        if self.options.reads_documents:
            for shard in materials.shards("raw_long_sft", ["context"]):
                yield from (text for text in shard["context"].head(_DOCUMENTS).to_list() if text)
            return
        haystack = self._haystack()
        for file in haystack.find():
            yield haystack.text(file)


class GeneratedNeedle(GeneratedNeedleQuestions):
    """LongAlign's needle by exact match."""

    name = "generated_needle"
    title = "Needle in a haystack, generated"
    description = "A sentence hidden at a depth of a text of a length, and asked for: whether the answer holds it."
    unit = "%"

    def value(self, question: Question, answer: str) -> float:
        """Return 100 if the answer contains, word for word, the part that the question does not give away; else 0."""
        return 100.0 * holds(answer, question.facts["key"])


class GeneratedNeedleJudged(GeneratedNeedleQuestions, RatedBenchmark):
    """LongAlign's needle by its judge."""

    name = "generated_needle_judged"
    title = "Needle in a haystack by a judge"
    description = (
        "A sentence hidden at a depth of a text of a length, and asked for; each answer rated from 1 to 10 by a judge "
        "that sees the sentence."
    )
    floor, highest = 1.0, 10.0
    again = 4
    asks_as = "generated_needle"

    def files(self) -> Sequence[QuestionFiles]:
        return [*super().files(), self._judge_files()]

    def questions(self, materials: Materials) -> list[Question]:
        """Return the questions; `facts` also hold the judge's system message and prompt."""
        system, prompt = self.judge_texts()
        return [
            replace(each, facts={**each.facts, "judge_system": system, "judge_prompt": prompt})
            for each in super().questions(materials)
        ]

    def requests(self, question: Question, answers: Sequence[str]) -> list[JudgeRequest]:
        """Return the judge request with the needle and the stripped answer."""
        prompt = question.facts["judge_prompt"].replace("{prediction}", answers[0].strip())
        return [self.request(question, question.facts["judge_system"], prompt)]

    def judge_texts(self) -> tuple[str, str]:
        """Return the judge's system message and its prompt, in which only {prediction} is left to fill.

        Raises GateauError if the official files are missing or differ.
        """
        files = self._judge_files()
        code, settings = files.find()
        names = ("SYSTEM_TEMPLATE", "USER_TEMPLATE", "CRITERIA")
        system, user, criteria = (files.assigned(code, name)[0] for name in names)
        opening = files.texts_in(code, "get_criteria")[0]
        asked: Any = files.mapping(settings).get("prompt")
        told = opening + "".join(f"{name}: {text}\n" for name, text in criteria.items())
        with files.understood(code.label):
            template_gaps(user)
            before, after = user.split("{prediction}")
            fill = {"criteria": told, "reference": asked["needle"], "input": asked["retrieval_question"]}
            return system, "{prediction}".join(part.format(**fill) for part in (before, after))

    def _judge_files(self) -> QuestionFiles:
        return self._official("eval.py", "config-eval.yaml", key=f"{self.place('official')}: judge")
