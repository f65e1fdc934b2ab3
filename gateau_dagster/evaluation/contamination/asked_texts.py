"""The questions of a benchmark as the data are compared with them: by their n-grams, and as texts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gateau_dagster.data.shingles import Sketch
from gateau_dagster.evaluation.contamination.hash_index import HashIndex
from gateau_dagster.evaluation.contamination.words import Hashes, ngrams, sketch_of, words
from gateau_dagster.evaluation.questions import Question

NGRAM_WORDS = 13
LEAST_WORDS = 8
"""A turn or a reference that has fewer words than an n-gram is one itself; below this it says too little."""
PROMPT_QUESTIONS = 20
"""Of as many questions, in a group or in all, what more than half of them say is the benchmark's prompt."""
_NONE = np.zeros(0, dtype=np.uint64)


@dataclass(frozen=True, kw_only=True, eq=False)
class AskedTexts:
    """Of each question the turns, with all that stands in them, and the references.

    ids: of the questions. lengths: words of the n-grams. ngrams, sizes: which questions have an n-gram, and how many
    different ones each has. sketches, shingles: of each question, and which of them have a hash. prompt_ngrams: how
    many were left out, as those of the benchmark's prompt.
    """

    ids: Sequence[str]
    lengths: Sequence[int]
    ngrams: HashIndex
    sizes: npt.NDArray[np.int64]
    sketches: Sequence[Sketch]
    shingles: HashIndex
    prompt_ngrams: int

    @classmethod
    def of(cls, questions: Sequence[Question]) -> AskedTexts:
        """Holds some 16 bytes for each word of the questions, and twice as much while it is made."""
        turns: list[Hashes] = []
        references: list[Hashes] = []
        sketches: list[Sketch] = []
        lengths = {NGRAM_WORDS}
        for question in questions:
            asked, answered = ([words(part) for part in parts] for parts in (question.turns, question.references))
            lengths |= {length for part in (*asked, *answered) for length in _lengths(part)}
            turns.append(_distinct_ngrams(asked))
            references.append(_distinct_ngrams(answered))
            sketches.append(sketch_of(*asked, *answered))
        groups = [question.group for question in questions]
        prompts = _prompts(turns, groups)
        own = list(_own(turns, references, [prompts[group] for group in groups]))
        return cls(
            ids=[question.question_id for question in questions],
            lengths=sorted(lengths),
            ngrams=HashIndex.of(own),
            sizes=np.array([each.size for each in own], dtype=np.int64),
            sketches=sketches,
            shingles=HashIndex.of(sketches),
            prompt_ngrams=np.unique(np.concatenate([*prompts.values(), _NONE])).size,
        )


def _lengths(part: Hashes) -> Iterator[int]:
    """How long the n-grams are that a part is compared by."""
    if part.size >= LEAST_WORDS:
        yield min(part.size, NGRAM_WORDS)


def _distinct_ngrams(parts: Sequence[Hashes]) -> Hashes:
    found = [ngrams(part, length) for part in parts for length in _lengths(part)]
    return np.unique(np.concatenate([*found, _NONE]))


def _prompts(turns: Sequence[Hashes], groups: Sequence[str]) -> dict[str, Hashes]:
    """Of each group the n-grams that say nothing about any of its questions."""
    members: Mapping[str, list[Hashes]] = {group: [] for group in groups}
    for turn, group in zip(turns, groups, strict=True):
        members[group].append(turn)
    of_all = _common(turns) if len(members) > 1 else _NONE
    return {group: np.union1d(_common(each), of_all) for group, each in members.items()}


def _common(turns: Sequence[Hashes]) -> Hashes:
    """What more than half of them have, where they are many."""
    if len(turns) < PROMPT_QUESTIONS:
        return _NONE
    values, counts = np.unique(np.concatenate(turns), return_counts=True)
    return values[counts > len(turns) / 2]


def _own(turns: Sequence[Hashes], references: Sequence[Hashes], prompts: Sequence[Hashes]) -> Iterator[Hashes]:
    """Each question's n-grams without its prompt's; what is a right answer counts, whoever else says it."""
    for turn, reference, prompt in zip(turns, references, prompts, strict=True):
        yield np.union1d(np.setdiff1d(turn, prompt, assume_unique=True), reference)
