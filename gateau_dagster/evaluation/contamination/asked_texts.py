"""The questions of a benchmark as the data are compared with them: by their n-grams, and as texts."""

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
"""A turn or a reference that has fewer words than an n-gram is one itself; below this it says too little."""
PROMPT_QUESTIONS = 20
"""Of as many questions, in a group or in all, what more than half of them say is the benchmark's prompt."""
NEAR = 0.5
"""Similarity from which two texts are near-duplicates."""
_NONE = np.zeros(0, dtype=np.uint64)


@dataclass(frozen=True, kw_only=True, eq=False)
class AskedTexts:
    """Of each question the turns, with all that stands in them, and the references.

    ids: of the questions. lengths: words of the n-grams. ngrams, sizes: which questions have an n-gram, and how many
    different ones each has. sketches, alike: of each question, and which may be near-duplicates of a
    text. prompt_ngrams: how
    many were left out, as those of the benchmark's prompt.
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
        """Holds some 20 bytes for each word of the questions, and 50 while it is made."""
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
    """How long the n-grams are that a part is compared by."""
    if part.size >= LEAST_WORDS:
        yield min(part.size, NGRAM_WORDS)


def _distinct_ngrams(parts: Sequence[Hashes]) -> Hashes:
    found = [ngrams(part, length) for part in parts for length in _lengths(part)]
    return np.unique(np.concatenate([*found, _NONE]))


def _prompts(every: HashIndex, answers: Sequence[Hashes], groups: Sequence[str]) -> Places:
    """Entries of `every` that say nothing about their question: what more than half of its group's questions say, or of
    all, where those are many. What is a right answer says something, whoever else has it.
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
    """Half of them; no number is above, where they are few."""
    return np.where(np.asarray(questions) < PROMPT_QUESTIONS, np.inf, np.asarray(questions) / 2)


def _of_question(hashes: Hashes, number: Any) -> Hashes:
    """A hash for each n-gram and question together."""
    return mixed(hashes ^ mixed(np.atleast_1d(number).astype(np.uint64)))
