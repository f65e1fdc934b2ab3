"""LongAlign's needle in a haystack: 1k to 60k tokens by 10 to 90 % depth, a generated answer, exact match."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Annotated, Any

import polars as pl
from pydantic import Field

from gateau_dagster.config.addresses import InputAddress, InputAddresses
from gateau_dagster.config.base import Section
from gateau_dagster.config.values import LONGEST
from gateau_dagster.errors import GateauError
from gateau_dagster.evaluation.benchmark import Benchmark, Generation, Materials, Measured, Question, Scored
from gateau_dagster.evaluation.grading import grade_each
from gateau_dagster.evaluation.metrics import normalised_words
from gateau_dagster.evaluation.question_files import (
    base_tokenizer,
    check_files,
    check_lengths,
    files_digest,
    lengths_within,
    question_files,
    text_of,
    texts_in,
    yaml_of,
)
from gateau_dagster.storage.stamp import By

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from gateau_dagster.config import Config


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
        """Return the words that an answer must contain: the needle's from the first that is not in the question."""
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
        ends = (_ids(self.tokenizer, f"{before}{stop}")[-1:] for stop in _STOPS for before in ("", "a", "好"))
        return frozenset(
            token for end in ends for token in end if str(self.tokenizer.decode([token])).strip() in _STOPS
        )

    def with_needle(self, needle: str, *, length: int, depth: int) -> str:
        """Return the text cut to `length` tokens, less RESERVED, needle included.

        The needle follows the last full stop among the first `depth` per cent of the other tokens. Without a full stop
        it is at the beginning; with depth 100 it is at the end. Raises GateauError for a length without room.
        """
        hidden = _ids(self.tokenizer, needle)
        room = length - RESERVED - len(hidden)
        if room <= 0:
            raise GateauError(
                f"evaluation.generated_needle.lengths: {length} tokens have no room for text: the needle takes "
                f"{len(hidden)}, question and answer {RESERVED}; raise it"
            )
        text = self.ids[:room]
        place = len(text) if depth == 100 else int(len(text) * (depth / 100))
        while depth != 100 and place and text[place - 1] not in self.stops:
            place -= 1
        return str(self.tokenizer.decode([*text[:place], *hidden, *text[place:]], skip_special_tokens=True))


def running_text(tokenizer: PreTrainedTokenizerBase, texts: Iterable[str], *, tokens: int) -> RunningText:
    """Join the texts, and repeat them until there are `tokens` tokens.

    Raises GateauError where there is no text.
    """
    known: list[tuple[str, int]] = []
    taken, count = "", 0
    for text in texts:
        known.append((text, len(_ids(tokenizer, text))))
        taken, count = taken + text, count + known[-1][1]
        if count >= tokens:
            break
    if count == 0:
        raise GateauError(
            "evaluation.generated_needle.haystack: there is no text to hide a needle in: give files that hold some"
        )
    taken *= -(-tokens // count)
    return RunningText(tokenizer=tokenizer, ids=_ids(tokenizer, taken)[:tokens])


def _ids(tokenizer: PreTrainedTokenizerBase, text: str) -> tuple[int, ...]:
    return tuple(tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])  # pyright: ignore


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
        default=None, description="LongAlign's folder Needle_test: its needle, its question and its essays."
    )
    haystack: InputAddresses | None = Field(
        default=None, description="Text files to hide it in; default: LongAlign's essays, else the project's documents."
    )
    lengths: list[Annotated[int, Field(ge=1, le=LONGEST)]] = Field(
        default=[1000, 7556, 14111, 20667, 27222, 33778, 40333, 46889, 53444, 60000],
        min_length=1,
        description="Tokens, by the base model's tokenizer; 200 of them are for question and answer.",
    )
    depths: list[Annotated[int, Field(ge=0, le=100)]] = Field(
        default=[10, 19, 28, 37, 46, 54, 63, 72, 81, 90], min_length=1, description="Per cent of the text before it."
    )
    answer_tokens: int = Field(default=1024, ge=1, description="At most, of an answer.")

    @property
    def reads_documents(self) -> bool:
        """Return whether the needle is hidden in the project's own documents."""
        return self.official is None and self.haystack is None


def place_of(benchmark: str, key: str) -> str:
    """Return the place of an option in the configuration file."""
    return f"evaluation.{benchmark}.{key}"


def needle_text(config: Config, options: GeneratedNeedleOptions, benchmark: str) -> NeedleText:
    """Return the needle and its question. Raises GateauError where the official files are missing or differ."""
    if options.official is None:
        return _OWN
    place = place_of(benchmark, "official")
    (settings,), (code,) = (
        question_files(config, place, f"{options.official}/{name}", cure=CURE) for name in (_CONFIG, _CODE)
    )
    texts = texts_in(code, "generate_prompt", place)
    contents = [number for number, text in enumerate(texts) if text == "content"]
    prompt = yaml_of(settings, place).get("prompt")
    if not isinstance(prompt, dict) or not {"needle", "retrieval_question"} <= {*prompt}:
        raise GateauError(f"{place}: {settings.label} is not the published file; {CURE}")
    if len(contents) != 2 or len(texts) != contents[1] + 3:
        raise GateauError(f"{place}: {code.label} is not the published file; {CURE}")
    system, asked = texts[contents[0] + 1], "".join(texts[contents[1] + 1 :])
    return NeedleText(
        needle=prompt["needle"],
        question=prompt["retrieval_question"],
        frame=f"{system}\n{{context}}{asked}{{question}}",  # pred.py joins the system's text and the user's
    )


def _haystack(options: GeneratedNeedleOptions) -> str | list[str] | None:
    if options.haystack is not None or options.official is None:
        return options.haystack
    return f"{options.official}/{_ESSAYS}"


def _texts(materials: Materials, options: GeneratedNeedleOptions, benchmark: str) -> Iterator[str]:
    if options.reads_documents:
        for shard in materials.shards("raw_long_sft", ["context"]):
            yield from (text for text in shard["context"].head(_DOCUMENTS).to_list() if text)
        return
    place = place_of(benchmark, "haystack")
    for file in question_files(materials.config, place, _haystack(options), cure=CURE, plain_texts=True):
        yield text_of(file, place)


def needle_questions(materials: Materials, options: GeneratedNeedleOptions, benchmark: str) -> list[Question]:
    """Return one question per cell, the same for every variant: the base model's tokenizer counts the lengths."""
    text = needle_text(materials.config, options, benchmark)
    lengths = lengths_within(options.lengths, _longest(materials.config, options))
    hay = running_text(base_tokenizer(materials), _texts(materials, options, benchmark), tokens=max(lengths))
    return [
        Question(
            question_id=f"{length}/{depth}",
            group=f"{length}/{depth}",
            turns=(text.prompt(hay.with_needle(text.needle, length=length, depth=depth)),),
            generation=Generation(max_new_tokens=options.answer_tokens),
            references=(text.needle,),
            facts={"key": text.key, "length": length, "depth": depth},
        )
        for length in lengths
        for depth in sorted({*options.depths})
    ]


def probe_needle(materials: Materials, options: GeneratedNeedleOptions, benchmark: str) -> None:
    """Prepare a haystack of one token and the needle, so that missing or wrong input raises an error early."""
    text = needle_text(materials.config, options, benchmark)
    hay = running_text(base_tokenizer(materials), _texts(materials, options, benchmark), tokens=1)
    hay.with_needle(text.needle, length=min(options.lengths), depth=100)


def needle_sizes(config: Config, options: GeneratedNeedleOptions) -> list[tuple[float, float]]:
    """Return the tokens of each question and of its longest answer."""
    lengths = lengths_within(options.lengths, _longest(config, options))
    return [(float(length), float(options.answer_tokens)) for length in lengths for _ in {*options.depths}]


def cell_of(question_id: str) -> tuple[int, float]:
    """Return length in tokens and depth (0 to 1) of a question."""
    length, depth = question_id.split("/")
    return int(length), int(depth) / 100


def needle_reads(config: Config, options: GeneratedNeedleOptions) -> Mapping[str, By]:
    del config
    return {"raw_long_sft": "fingerprint"} if options.reads_documents else {}


def needle_settings(config: Config, options: GeneratedNeedleOptions, benchmark: str) -> Mapping[str, Any]:
    found = {}
    if options.official is not None:
        paths = [f"{options.official}/{name}" for name in (_CONFIG, _CODE)]
        place = place_of(benchmark, "official")
        found[place] = files_digest(config, place, paths, cure=CURE)
    if not options.reads_documents:
        place = place_of(benchmark, "haystack")
        found[place] = files_digest(config, place, _haystack(options), cure=CURE, plain_texts=True)
    return found


def check_needle(config: Config, options: GeneratedNeedleOptions, benchmark: str) -> None:
    """Raise GateauError for missing files and for lengths that no prompt may have."""
    if options.official is not None:
        check_files(
            config,
            place_of(benchmark, "official"),
            [f"{options.official}/{name}" for name in (_CONFIG, _CODE)],
            cure=CURE,
        )
    if not options.reads_documents:
        check_files(config, place_of(benchmark, "haystack"), _haystack(options), cure=CURE, plain_texts=True)
    short = [length for length in options.lengths if length <= RESERVED]
    if short:
        raise GateauError(
            f"{place_of(benchmark, 'lengths')}: {min(short)} tokens have no room for text: question and answer take "
            f"{RESERVED}; raise it"
        )
    longest, given = _longest(config, options), "lengths" in options.model_fields_set
    check_lengths(place_of(benchmark, "lengths"), options.lengths, longest, given=given)


def _longest(config: Config, options: GeneratedNeedleOptions) -> int:
    """Return the most tokens of a question whose middle is not cut out."""
    return config.scoring.max_length - options.answer_tokens


_NAME = "generated_needle"


def grade(
    questions: Sequence[Question],
    answers: pl.DataFrame,
    judgments: pl.DataFrame | None,
    options: GeneratedNeedleOptions,
) -> Measured:
    """Return 100 where the answer contains, word for word, what the question does not give away; else 0."""
    del judgments, options
    return grade_each(questions, answers, lambda question, answer: 100.0 * holds(answer, question.facts["key"]))


BENCHMARK = Benchmark(
    name=_NAME,
    title="Needle in a haystack, generated",
    description="A sentence hidden at a depth of a text of a length, and asked for: whether the answer holds it.",
    options=GeneratedNeedleOptions,
    settings=partial(needle_settings, benchmark=_NAME),
    check=partial(check_needle, benchmark=_NAME),
    scored=Scored(
        unit="%",
        by_base=True,
        groups="length and depth",
        grid=cell_of,
        reads=needle_reads,
        sizes=needle_sizes,
        probe=partial(probe_needle, benchmark=_NAME),
        questions=partial(needle_questions, benchmark=_NAME),
        grade=grade,
    ),
)
