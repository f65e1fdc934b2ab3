"""Real questions with a known passage: read from a file, split in halves for choosing and reporting, searched by BM25.

The data are Natural Questions (Kwiatkowski et al. 2019, CC BY-SA 3.0): question, accepted answers, title and the gold
Wikipedia passage. Both forms of the selection by Liu et al. 2023 ("Lost in the Middle") are read: a record with
`title` and `passage`, and one of the public `nq-open-oracle.jsonl.gz` with `ctxs`, whose gold passage is taken.
"""

import gzip
import hashlib
import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

PUBLIC = "https://raw.githubusercontent.com/nelson-liu/lost-in-the-middle/main/qa_data/nq-open-oracle.jsonl.gz"
Fold = Literal["choose", "report"]
AnswerType = Literal["time", "number", "person", "place", "other"]
FOLDS: tuple[Fold, ...] = ("choose", "report")
COMMON_SHARE = 0.03  # of the passages: an answer that stands in more of them cannot be kept out of a context
MOST_WORDS = 8  # of an answer
_TYPES: tuple[tuple[str, AnswerType], ...] = (
    (r"\bhow (many|much|old|long|tall|big|far)\b", "number"),
    (r"\b(when|what year|which year|what date|what time)\b", "time"),
    (r"\b(who|whose|whos|whom)\b", "person"),
    (r"\b(where|what country|which country|what city|what state)\b", "place"),
)


def normalised(text: str) -> str:
    """Lower-case words, one space before and after each, so that `in` finds whole words only."""
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
        """The accepted answers, normalised; those of one character or none are left out."""
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
    def answer(self) -> str | None:
        """The first accepted answer that the passage holds letter by letter, three characters at least."""
        known = (each for each in self.answers if each in self.passage and len(each.strip()) > 2)
        return next((each for each in known if len(each.split()) <= MOST_WORDS), None)

    @property
    def asked(self) -> str:
        """The question as a sentence."""
        return f"{self.text[0].upper()}{self.text[1:].rstrip(' ?')}?"

    @property
    def answer_type(self) -> AnswerType:
        """What the question asks for, by its words."""
        for pattern, kind in _TYPES:
            if re.search(pattern, self.text.lower()):
                return kind
        return "other"

    @property
    def fold(self) -> Fold:
        """By a stable hash of the page's title: no page is on both sides."""
        return FOLDS[hashlib.sha256(normalised(self.title).encode()).digest()[0] % 2]


def stands_in(aliases: Iterable[str], words: str) -> bool:
    """Whether a normalised text holds one of the normalised answers as whole words."""
    return any(alias in words for alias in aliases)


def read_questions(file: Path) -> list[Question]:
    """The questions of a JSON-lines file, gzip or not; ValueError names the line that is in neither form."""
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
        """Whether the question does not answer itself, and its answer can be kept out of a context."""
        if question.answer is None or stands_in(question.aliases, question.asked_words):
            return False
        return not self._common(question)

    def _common(self, question: Question) -> bool:
        limit = max(2, COMMON_SHARE * len(self.all))
        return sum(stands_in(question.aliases, each.words) for each in self.all) > limit

    def bm25(self, query: str, number: int) -> float:
        """The score of passage `number` of `all`."""
        count = self._counts[number]
        length = 1.5 * (0.25 + 0.75 * count.total() / self._mean)
        return sum(
            self._idf(word) * count[word] * 2.5 / (count[word] + length) for word in query.split() if word in count
        )

    def _idf(self, word: str) -> float:
        holds = self._documents[word]
        return math.log(1 + (len(self.all) - holds + 0.5) / (holds + 0.5))

    def hard_distractors(self, question: Question, count: int) -> list[Question]:
        """Passages of the same page or for the same type of answer, best by BM25 first, that hold no answer."""
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
            if entity is None or len(entity) < 4 or not entity[0].isupper():
                continue
            key = normalised(entity)
            for second in self.askable:
                if key not in second.asked_words or key not in second.words:
                    continue
                apart = second.title != first.title and not stands_in(second.aliases, first.words)
                if apart and key not in second.aliases and key not in first.asked_words:
                    found.append((first, second, entity))
        return found
