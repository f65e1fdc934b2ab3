"""Find the samples of the data that share text with questions of a benchmark, and how much they share."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt
import polars as pl

from gateau_dagster.data.near_duplicates import sketch
from gateau_dagster.data.shingles import Hashes
from gateau_dagster.evaluation.contamination.asked_texts import NEAR, AskedTexts
from gateau_dagster.evaluation.contamination.words import ngrams, shingles, words
from gateau_dagster.tables import SAMPLE_ID, Column, schema

# Raise it when the same samples and questions get other overlaps.
CODE_VERSION = "2"
FAMILY, SHORT_FAMILY = "contamination", "short_contamination"

OVERLAPS = (
    SAMPLE_ID,
    Column(name="question_id", dtype=pl.String(), description="A question that has something in common with it."),
    Column(name="shared", dtype=pl.Int32(), description="Different n-grams of 13 words of the question in the sample."),
    Column(name="share", dtype=pl.Float64(), description="Of the question's n-grams."),
    Column(
        name="similarity",
        dtype=pl.Float64(),
        description="Share of common shingles of 3 words among those of sample and question, estimated by MinHash.",
    ),
)


def overlaps(samples: Iterable[tuple[str, Sequence[str]]], asked: AskedTexts) -> pl.DataFrame:
    """Return OVERLAPS by sample and question: pairs that share an n-gram, or that are near-duplicates.

    samples: id and texts of each; no n-gram spans two texts.
    """
    ids: list[str] = []
    found: list[tuple[npt.NDArray, ...]] = []
    for sample_id, texts in samples:
        questions, shared, similar = _overlaps([words(text) for text in texts], asked)
        ids += [sample_id] * questions.size
        found.append((questions, shared, similar))
    columns = [np.concatenate(column) for column in zip(*found, strict=True)] or [np.zeros(0, dtype=np.int64)] * 3
    questions, shared, similar = columns
    table = {
        "sample_id": ids,
        "question_id": [asked.ids[number] for number in questions],
        "shared": shared,
        "share": shared / np.maximum(asked.sizes[questions], 1),
        "similarity": similar,
    }
    return pl.DataFrame(table, schema=schema(OVERLAPS)).sort("sample_id", "question_id")


def _overlaps(parts: Sequence[Hashes], asked: AskedTexts) -> tuple[npt.NDArray, npt.NDArray, npt.NDArray]:
    """Return the numbers of questions, ascending; the n-grams that each shares with the sample; the similarities."""
    grams = [ngrams(part, length) for part in parts for length in asked.lengths]
    sharing, counts = asked.ngrams.common(np.concatenate(grams))
    sample = sketch(shingles(*parts))
    questions = np.union1d(sharing, np.array(asked.alike(sample), dtype=np.int64)).astype(np.int64)
    shared = np.zeros(questions.size, dtype=np.int64)
    shared[np.searchsorted(questions, sharing)] = counts
    similar = np.array([sample.jaccard(asked.sketches[number]) for number in questions], dtype=np.float64)
    kept = (shared > 0) | (similar >= NEAR)
    return questions[kept], shared[kept], similar[kept]
