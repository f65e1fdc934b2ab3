"""Index the questions of a benchmark, by n-gram and as texts, so that the data can be compared with them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from gateau_dagster.data.near_duplicates import Lookup, lookup, sketch
from gateau_dagster.data.shingles import Hashes, mixed
from gateau_dagster.evaluation.contamination.hash_index import HashIndex, Places
from gateau_dagster.evaluation.contamination.words import ngrams, shingles, words
from gateau_dagster.evaluation.questions import Question

if TYPE_CHECKING:
    from datasketch import LeanMinHash

NGRAM_WORDS = 13
LEAST_WORDS = 8
"""Fewest words of a turn or reference that is compared; one shorter than an n-gram is one n-gram itself."""
PROMPT_QUESTIONS = 20
"""Fewest questions, in a group or in all, of which n-grams shared by more than half are the benchmark's prompt."""
NEAR = 0.5
"""Lowest similarity of two near-duplicates."""
_NONE = np.zeros(0, dtype=np.uint64)


@dataclass(frozen=True, kw_only=True, eq=False)
class AskedTexts:
    """The questions of a benchmark: the text of their turns and references.

    ids: of the questions. lengths: words of the n-grams. ngrams, sizes: which questions have an n-gram, and how many
    different ones each has.
    sketches, alike: the MinHash of each question, and a lookup of the questions that may be near-duplicates of a text.
    prompt_ngrams: how many n-grams were left out because they belong to the benchmark's prompt.
    """

    ids: Sequence[str]
    lengths: Sequence[int]
    ngrams: HashIndex
    sizes: npt.NDArray[np.int64]
    sketches: Sequence[LeanMinHash]
    alike: Lookup
    prompt_ngrams: int

    @classmethod
    def of(cls, questions: Sequence[Question]) -> AskedTexts:
        """Index the questions. The index takes about 20 bytes per word of the questions, and 50 while it is built."""
        own: list[Hashes] = []
        answers: list[Hashes] = []
        sketches: list[LeanMinHash] = []
        lengths = {NGRAM_WORDS}
        for question in questions:
            turns, references = ([words(part) for part in parts] for parts in (question.turns, question.references))
            lengths |= {length for part in (*turns, *references) for length in _lengths(part)}
            own.append(_distinct_ngrams([*turns, *references]))
            answers.append(_distinct_ngrams(references))
            sketches.append(sketch(shingles(*turns, *references)))
        every = HashIndex.of(own)
        prompts = _prompts(every, answers, [question.group for question in questions])
        kept = every.without(prompts) if prompts.size else every
        return cls(
            ids=[question.question_id for question in questions],
            lengths=sorted(lengths),
            ngrams=kept,
            sizes=np.bincount(kept.owners, minlength=len(own)),
            sketches=sketches,
            alike=lookup(sketches, NEAR),
            prompt_ngrams=int(np.count_nonzero(np.diff(kept.firsts) < np.diff(every.firsts))),
        )


def _lengths(part: Hashes) -> Iterator[int]:
    """Yield the n-gram length by which a part is compared, if it has enough words."""
    if part.size >= LEAST_WORDS:
        yield min(part.size, NGRAM_WORDS)


def _distinct_ngrams(parts: Sequence[Hashes]) -> Hashes:
    found = [ngrams(part, length) for part in parts for length in _lengths(part)]
    return np.unique(np.concatenate([*found, _NONE]))


def _prompts(every: HashIndex, answers: Sequence[Hashes], groups: Sequence[str]) -> Places:
    """Return the entries of `every` that belong to the benchmark's prompt and do not characterise their question.

    These are n-grams of more than half of the group's questions, or of all questions, where those are many. N-grams of
    a question's references always stay.
    """
    counts = np.diff(every.firsts)
    many = np.flatnonzero(counts > PROMPT_QUESTIONS / 2)
    entries = every.entries(many)
    owners, hashes = every.owners[entries], np.repeat(every.hashes[many], counts[many])
    names, group_of = np.unique(np.array(groups, dtype=np.str_), return_inverse=True)
    said = np.repeat(counts[many], counts[many]) > _half(len(groups))
    in_group = np.repeat(np.arange(many.size), counts[many]) * names.size + group_of[owners]
    found, place, said_in = np.unique(in_group, return_inverse=True, return_counts=True)
    if found.size:
        said |= (said_in > _half(np.bincount(group_of))[found % names.size])[place]
    answered = np.concatenate([_NONE, *(_of_question(each, number) for number, each in enumerate(answers))])
    return entries[said & ~np.isin(_of_question(hashes, owners), answered)]


def _half(questions: Any) -> Any:
    """Return half of the number of questions; infinity where there are too few."""
    return np.where(np.asarray(questions) < PROMPT_QUESTIONS, np.inf, np.asarray(questions) / 2)


def _of_question(hashes: Hashes, number: Any) -> Hashes:
    """Return one hash for each pair of n-gram and question."""
    return mixed(hashes ^ mixed(np.atleast_1d(number).astype(np.uint64)))
