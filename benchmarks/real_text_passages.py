"""Real passages: questions with a known passage, and contexts whose evidence stands where it is wanted.

The data are Natural Questions (Kwiatkowski et al. 2019, CC BY-SA 3.0): question, accepted answers, title and the gold
Wikipedia passage. Both forms of the selection by Liu et al. 2023 ("Lost in the Middle") are read: a record with
`title` and `passage`, and one of the public `nq-open-oracle.jsonl.gz` with `ctxs`, whose gold passage is taken. The
questions are split in halves for choosing and for reporting, and searched by BM25.

A context is a row of passages. Far evidence is wholly beyond what theta_A's window shows of the context, near evidence
wholly within. What the window shows is counted with the product's own prompt, whatever its template.
"""

import gzip
import hashlib
import json
import math
import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, Literal

from gateau_dagster.config.models import Template
from gateau_dagster.data.sample import Sample
from gateau_dagster.models.prompt import build_prompt, encode, token_offsets

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Fold = Literal["choose", "report"]

FOLDS: tuple[Fold, ...] = ("choose", "report")
COMMON_SHARE = 0.03  # of the passages: an answer that stands in more of them cannot be kept out of a context
MOST_WORDS = 8  # of an answer
_TYPES: tuple[tuple[str, str], ...] = (
    (r"\bhow (many|much|old|long|tall|big|far)\b", "number"),
    (r"\b(when|what year|which year|what date|what time)\b", "time"),
    (r"\b(who|whose|whos|whom)\b", "person"),
    (r"\b(where|what country|which country|what city|what state)\b", "place"),
)


def normalised(text: str) -> str:
    """Return the lower-case words, one space before and after each, so that `in` finds whole words only."""
    words = re.findall(r"\w+", text.lower())
    return f" {' '.join(words)} "


@dataclass(frozen=True, kw_only=True)
class Question:
    """A question, all accepted answers, and the passage that holds them."""

    text: str
    answers: tuple[str, ...]
    title: str
    passage: str

    @cached_property
    def aliases(self) -> tuple[str, ...]:
        """The accepted answers, normalised, without those of at most one character."""
        found = dict.fromkeys(normalised(answer) for answer in self.answers)
        return tuple(each for each in found if len(each.strip()) > 1)

    @cached_property
    def words(self) -> str:
        """Title and passage, normalised."""
        return normalised(f"{self.title}\n{self.passage}")

    @cached_property
    def asked_words(self) -> str:
        """The question, normalised."""
        return normalised(self.text)

    @property
    def shown(self) -> str:
        """The paragraph of a context: title, line break, passage."""
        return f"{self.title}\n{self.passage}"

    @cached_property
    def answer(self) -> str:
        """The first accepted answer that the passage holds letter by letter, three characters at least; else empty."""
        known = (each for each in self.answers if each in self.passage and len(each.strip()) > 2)
        return next((each for each in known if len(each.split()) <= MOST_WORDS), "")

    @property
    def asked(self) -> str:
        """The question as a sentence."""
        return f"{self.text[0].upper()}{self.text[1:].rstrip(' ?')}?"

    @property
    def answer_type(self) -> str:
        """Return the kind of answer that the question asks for, by its words."""
        text = self.text.lower()
        return next((kind for pattern, kind in _TYPES if re.search(pattern, text)), "other")

    @property
    def fold(self) -> Fold:
        """Return the half of the data, by a stable hash of the page's title: no page is in both halves."""
        return FOLDS[hashlib.sha256(normalised(self.title).encode()).digest()[0] % 2]


def stands_in(aliases: Iterable[str], words: str) -> bool:
    """Return whether a normalised text holds one of the normalised answers as whole words."""
    return any(alias in words for alias in aliases)


def read_questions(file: Path) -> list[Question]:
    """Read the questions of a JSON-lines file, gzip or not. ValueError names a line that is in neither form."""
    with gzip.open(file, "rt", encoding="utf-8") if file.suffix == ".gz" else file.open(encoding="utf-8") as lines:
        return [_question(json.loads(line), number) for number, line in enumerate(lines, start=1) if line.strip()]


def _question(record: dict[str, Any], number: int) -> Question:
    gold = record
    if "passage" not in record:
        gold = next((each for each in record.get("ctxs", []) if each.get("isgold", True)), {})
    passage = gold.get("passage") or gold.get("text")
    if not passage or not record.get("answers") or not record.get("question"):
        raise ValueError(f"line {number}: question, answers and a passage (or ctxs with a gold one) are wanted")
    # Some passages have non-breaking spaces and line breaks, at which a paragraph must not end.
    text = " ".join(passage.split())
    answers = tuple(" ".join(each.split()) for each in record["answers"])
    return Question(text=record["question"].strip(), answers=answers, title=gold["title"].strip(), passage=text)


class Passages:
    """The questions of one fold, those that can be asked, and the search over all passages.

    BM25 (Robertson and Zaragoza 2009) with k1 1.5 and b 0.75, and Lucene's idf, which is never negative.
    """

    def __init__(self, questions: Sequence[Question], fold: Fold) -> None:
        self.fold: Fold = fold
        self.all = [each for each in questions if each.fold == fold]
        self._counts = [Counter(each.words.split()) for each in self.all]
        self._mean = sum(count.total() for count in self._counts) / max(len(self._counts), 1)
        self._documents = Counter(word for count in self._counts for word in count)
        self.askable = [each for each in self.all if self._can_be_asked(each)]

    def _can_be_asked(self, question: Question) -> bool:
        """Return whether the question does not answer itself, and its answer can be kept out of a context."""
        if not question.answer or stands_in(question.aliases, question.asked_words):
            return False
        return sum(stands_in(question.aliases, each.words) for each in self.all) <= max(2, COMMON_SHARE * len(self.all))

    def bm25(self, query: str, number: int) -> float:
        """Return the score of passage `number` of `all`."""
        count, words = self._counts[number], query.split()
        length = 1.5 * (0.25 + 0.75 * count.total() / self._mean)
        return sum(self._idf(word) * count[word] * 2.5 / (count[word] + length) for word in words if word in count)

    def _idf(self, word: str) -> float:
        holds = self._documents[word]
        return math.log(1 + (len(self.all) - holds + 0.5) / (holds + 0.5))

    def hard_distractors(self, question: Question, count: int) -> list[Question]:
        """Return passages of the same page or for the same type of answer, best by BM25 first, that hold no answer."""
        query, title = normalised(question.text), normalised(question.title)
        ranked: list[tuple[bool, float, int]] = []
        for number, other in enumerate(self.all):
            same = normalised(other.title) == title
            fits = same or other.answer_type == question.answer_type
            if fits and other.words != question.words and not stands_in(question.aliases, other.words):
                ranked.append((same, self.bm25(query, number), -number))
        return [self.all[-number] for _, _, number in sorted(ranked, reverse=True)[:count]]

    @cached_property
    def hops(self) -> list[tuple[Question, Question, str]]:
        """(A, B, entity): an answer of A is named in B's question and passage; B's answer is not in A's passage."""
        found = []
        for first in self.askable:
            entity = first.answer
            if len(entity) < 4 or not entity[0].isupper():
                continue
            key = normalised(entity)
            for second in self.askable:
                if key not in second.asked_words or key not in second.words:
                    continue
                apart = second.title != first.title and not stands_in(second.aliases, first.words)
                if apart and key not in second.aliases and key not in first.asked_words:
                    found.append((first, second, entity))
        return found


SEPARATOR = "\n\n"
SLACK = 12  # tokens: a passage's count alone and in the context may differ at its ends
_LONGEST = 2**20
Span = tuple[int, int]


class NoRoomError(ValueError):
    """The passages do not fit where they should stand."""


@dataclass(frozen=True, kw_only=True)
class Room:
    """The size of a context: at most `tokens`, of which a prompt of `window` tokens shows the end."""

    tokenizer: "PreTrainedTokenizerBase"
    tokens: int
    window: int
    template: Template = "gateau"
    _known: dict[str, int] = field(default_factory=dict)

    def count(self, text: str) -> int:
        """Return the tokens of a text on its own."""
        if text not in self._known:
            self._known[text] = len(encode(self.tokenizer, text))
        return self._known[text]

    def visible(self, instruction: str, response: str) -> int:
        """Return how many context tokens theta_A sees beside frame, instruction and response."""
        sample = Sample(sample_id="", source="", context="", instruction=instruction, response=response)
        around = build_prompt(self.tokenizer, sample, max_length=_LONGEST, template=self.template).length
        return self.window - around


@dataclass(frozen=True, kw_only=True)
class Paragraph:
    """A piece of a context. evidence: whether the response is drawn from it."""

    text: str
    evidence: bool = False


@dataclass(frozen=True, kw_only=True)
class Places:
    """The passages that must be far and near. Evidence keeps its order; `last` ends the context."""

    far: Sequence[Paragraph] = ()
    near: Sequence[Paragraph] = ()
    last: Paragraph | None = None

    @property
    def paragraphs(self) -> list[Paragraph]:
        """All of them."""
        return [*self.far, *self.near, *self.ending]

    @property
    def ending(self) -> list[Paragraph]:
        """`last`, as a list of at most one."""
        return [] if self.last is None else [self.last]


@dataclass(frozen=True, kw_only=True)
class Page:
    """A context; evidence: character ranges in it; border: the first character that theta_A sees; tokens: all of it."""

    context: str
    evidence: tuple[Span, ...]
    border: int
    tokens: int

    def place(self, span: Span) -> str:
        """Return `far`, `near`, or `border` for a range that theta_A sees a part of."""
        return "far" if span[1] <= self.border else "near" if span[0] >= self.border else "border"


def lay_out(places: Places, fillers: Iterable[Question], room: Room, visible: int, rng: Random) -> Page:
    """Return a context of `room.tokens` tokens or a word or two fewer. Raises NoRoomError where that cannot be."""
    source = (Paragraph(text=each.shown) for each in fillers)
    near, border = _near_block(places, source, room, visible, rng)
    near_tokens = sum(_size(room, each) for each in (*border, *near))
    far, loose = _far_block(places, source, room, room.tokens - near_tokens, rng)
    page = page_of([*far, *border, *near], room, visible)
    while page.tokens > room.tokens and far[loose].text:
        # Together the parts have some more tokens than apart: a filler pays for them.
        far[loose] = _cut(far[loose], room, _size(room, far[loose]) - (page.tokens - room.tokens))
        page = page_of([each for each in (*far, *border, *near) if each.text], room, visible)
    wanted = {"far": sum(each.evidence for each in places.far)}
    wanted["near"] = sum(each.evidence for each in near)
    found = [page.place(span) for span in page.evidence]
    if page.tokens > room.tokens or any(found.count(name) != count for name, count in wanted.items()):
        raise NoRoomError(f"{page.tokens} tokens with evidence {', '.join(found)}, wanted {room.tokens} with {wanted}")
    return page


def _near_block(
    places: Places, source: Iterator[Paragraph], room: Room, visible: int, rng: Random
) -> tuple[list[Paragraph], list[Paragraph]]:
    """Return the paragraphs that the window shows as a whole, and those at its border."""
    near = list(places.near)
    used = sum(_size(room, each) for each in (*near, *places.ending))
    if used > visible - SLACK:
        raise NoRoomError(f"near passages take {used} tokens, and the window shows {visible} of the context")
    border: list[Paragraph] = []
    while used < visible + SLACK:
        paragraph = _next(source)
        size = _size(room, paragraph)
        if not border and used + size <= visible - SLACK:
            near.append(paragraph)
        else:
            border.append(paragraph)
        used += size
    rng.shuffle(near)
    order = iter(places.near)
    near = [next(order) if each.evidence else each for each in near]
    return near + places.ending, border


def _far_block(
    places: Places, source: Iterator[Paragraph], room: Room, left: int, rng: Random
) -> tuple[list[Paragraph], int]:
    """Return paragraphs of `left` tokens, wanted ones in order, fillers between; and which filler was cut to fit."""
    left -= sum(_size(room, each) for each in places.far)
    if left < 0:
        raise NoRoomError(f"{-left} tokens too many beyond the window of {room.window}")
    fillers: list[Paragraph] = []
    while left > 0 or not fillers:
        fillers.append(_next(source))
        left -= _size(room, fillers[-1])
    fillers[-1] = _cut(fillers[-1], room, _size(room, fillers[-1]) + left)
    slots = [True] * len(places.far) + [False] * len(fillers)
    rng.shuffle(slots)
    wanted, others = iter(places.far), iter(fillers)
    found = [next(wanted) if slot else next(others) for slot in slots]
    # The last filler is the one cut: it stands at the last slot of a filler.
    return found, len(slots) - 1 - slots[::-1].index(False)


def page_of(paragraphs: Sequence[Paragraph], room: Room, visible: int, separator: str = SEPARATOR) -> Page:
    """Return the context of these paragraphs, of whose end theta_A sees `visible` tokens."""
    evidence, begin = [], 0
    for each in paragraphs:
        if each.evidence:
            evidence.append((begin, begin + len(each.text)))
        begin += len(each.text) + len(separator)
    return page_with(separator.join(each.text for each in paragraphs), evidence, room, visible)


def page_with(context: str, evidence: Sequence[Span], room: Room, visible: int) -> Page:
    """Return a context with these character ranges as its evidence, of whose end theta_A sees `visible` tokens."""
    offsets = token_offsets(room.tokenizer, context)
    hidden = max(len(offsets) - visible, 0)
    border = offsets[hidden][0] if hidden < len(offsets) else len(context)
    return Page(context=context, evidence=tuple(evidence), border=border, tokens=len(offsets))


def _size(room: Room, paragraph: Paragraph) -> int:
    return room.count(paragraph.text + SEPARATOR)


def _cut(paragraph: Paragraph, room: Room, tokens: int) -> Paragraph:
    """Return as many of its first words as have at most `tokens` tokens with the separator."""
    words = paragraph.text.split(" ")
    counts = range(1, len(words) + 1)
    fitting = bisect_right(counts, tokens, key=lambda count: room.count(" ".join(words[:count]) + SEPARATOR))
    return Paragraph(text=" ".join(words[:fitting]))


def _next(source: Iterator[Paragraph]) -> Paragraph:
    paragraph = next(source, None)
    if paragraph is None:
        raise NoRoomError("the file has too few passages for a context of this length")
    return paragraph
