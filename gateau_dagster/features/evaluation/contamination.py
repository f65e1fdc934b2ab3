"""Find questions of benchmarks in the data, and compare variants without these questions."""

# Why hashes in arrays: words, n-grams and their matches are computed by numpy for a whole text at once. An n-gram costs
# the same for any length, by differences of one running sum. Python sets of strings would need several times the memory
# and much more time.
#
# What it costs: one pass over all texts of the data for each benchmark. The index of the questions stays in memory, at
# most 24 bytes for each n-gram of a question. Questions have at most six n-gram lengths, so a text is hashed at most
# seven times, its shingles included.
#
# What it may get wrong: 64 bits of hash confuse two n-grams by chance. For 10^9 words of data and 10^7 n-grams, about
# 0.0005 false matches are expected. It finds copies and near-copies, not translations or paraphrases.

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import polars as pl

from gateau_dagster import tables
from gateau_dagster.data.near_duplicates import Hashes, Lookup, lookup, mixed, sketch
from gateau_dagster.features.evaluation.benchmark import Benchmark, Question
from gateau_dagster.features.evaluation.statistics.experiment import Cost, Line, experiment_rows
from gateau_dagster.tables import SAMPLE_ID, Column, schema

if TYPE_CHECKING:
    from datasketch import LeanMinHash


SHINGLE_WORDS = 3
"""Words of a shingle. Near-duplicates share many: two texts with one word in ten changed share half."""
_CODES = 0x40000
"""Code points from here on are not writing: tags, private use."""
_BLANK, _LETTER, _ALONE = range(3)
# Scripts without blanks between words, where each character counts as a word: kana, ideographs, and those of South-East
# Asia. Korean has blanks.
_WITHOUT_BLANKS = (
    *((0x0E00, 0x0F00), (0x1000, 0x10A0), (0x1780, 0x1800), (0x3005, 0x3008), (0x3040, 0x3100), (0x31F0, 0x3200)),
    *((0x3400, 0x4DC0), (0x4E00, 0xA000), (0xF900, 0xFB00), (0x20000, _CODES)),
)
_FACTOR = 0x9E3779B97F4A7C15


def words(text: str) -> Hashes:
    """Return one hash for each word, in order; equal words have equal hashes.

    A word is a run of letters, digits and their marks. In scripts without blanks between words it is a single
    character.
    """
    folded = unicodedata.normalize("NFKC", text).casefold()
    if folded.isascii():
        codes = np.frombuffer(folded.encode("ascii"), dtype=np.uint8)
    else:
        points = np.frombuffer(folded.encode("utf-32-le", errors="surrogatepass"), dtype="<u4")
        codes = np.minimum(points, np.uint32(_CODES - 1))
    kinds = _kinds().take(codes)
    begins = kinds != _BLANK
    begins[1:] &= (kinds[1:] == _ALONE) | (kinds[:-1] != _LETTER)
    starts = np.flatnonzero(begins)
    # Characters between two words have the value 0 and extend the first word.
    return mixed(_polynomials(_values().take(codes), starts, np.append(starts, codes.size)[1:]))


def ngrams(of: Hashes, length: int) -> Hashes:
    """Return one hash for every `length` consecutive words, in order; no hash if there are fewer words."""
    count = max(0, of.size - length + 1)
    return mixed(_polynomials(of, slice(count), slice(length, length + count)) + np.uint64(length))


def shingles(*parts: Hashes) -> Hashes:
    """Return the hashes of the shingles of a text's parts, by which near-duplicates are found."""
    return np.concatenate([ngrams(part, SHINGLE_WORDS) for part in parts])


def _polynomials(values: Hashes, begins: Any, ends: Any) -> Hashes:
    """Return the sum of `values[begin + i]` times the factor's i-th power, modulo 2^64, from each begin to its end.

    Each sum is a difference of one running sum, multiplied by the inverse of the factor's power at the begin.
    """
    powers, inverses = _powers(1 << max(0, values.size - 1).bit_length())
    sums = np.zeros(values.size + 1, dtype=np.uint64)
    np.cumsum(values * powers[: values.size], out=sums[1:])
    return (sums[ends] - sums[begins]) * inverses[begins]


@cache
def _powers(count: int) -> tuple[Hashes, Hashes]:
    # `count` is a power of two, so there are few different ones to compute and to keep.
    both = (np.full(count, factor, dtype=np.uint64) for factor in (_FACTOR, pow(_FACTOR, -1, 1 << 64)))
    one, other = (np.cumprod(each) for each in both)
    return one, other


@cache
def _kinds() -> npt.NDArray[np.uint8]:
    """Return the kind of each code point."""
    kinds = np.array([unicodedata.category(chr(code))[0] in "LNM" for code in range(_CODES)], dtype=np.uint8) * _LETTER
    # Otherwise a whole Chinese sentence would be one word, and would match only as a whole.
    for first, end in _WITHOUT_BLANKS:
        kinds[first:end] *= _ALONE
    return kinds.astype(np.uint8)


@cache
def _values() -> Hashes:
    """Return a pseudo-random value for each code point; 0 for code points outside words."""
    return mixed(np.arange(1, _CODES + 1, dtype=np.uint64)) * (_kinds() != _BLANK)


Places = npt.NDArray[np.uint32]


@dataclass(frozen=True, kw_only=True, eq=False)
class HashIndex:
    """Hashes and the texts that have them: at most 24 bytes for each pair.

    hashes: the distinct hashes, ascending. starts: the index of the first hash with the same first bits, and the end.
    owners: the numbers of the texts with the first hash, then of those with the second and so on, ascending for each.
    firsts: the index at which the owners of each hash begin, and the end.
    """

    hashes: Hashes
    starts: Places
    owners: Places
    firsts: Places

    @classmethod
    def of(cls, texts: Sequence[Hashes]) -> HashIndex:
        """Build the index from each text's distinct hashes. There must be fewer than 2^32 in all."""
        every = np.concatenate([*texts, np.zeros(0, dtype=np.uint64)])
        order = np.argsort(every, kind="stable")
        every = every[order]
        owners = np.repeat(np.arange(len(texts), dtype=np.uint32), [text.size for text in texts])[order]
        del order
        firsts = np.flatnonzero(np.append(True, every[1:] != every[:-1])[: every.size]).astype(np.uint32)
        hashes, firsts = every[firsts], np.append(firsts, np.uint32(every.size))
        del every
        bits = max(1, hashes.size.bit_length())
        counts = np.bincount((hashes >> np.uint64(64 - bits)).view(np.int64), minlength=1 << bits)
        starts = np.zeros(counts.size + 1, dtype=np.uint32)
        np.cumsum(counts, dtype=np.uint32, out=starts[1:])
        return cls(hashes=hashes, starts=starts, owners=owners, firsts=firsts)

    def common(self, wanted: Hashes) -> tuple[Places, npt.NDArray[Any]]:
        """Return the texts with some of the `wanted` hashes, ascending, and the number of distinct ones in each."""
        return np.unique(self.owners[self.entries(self._places(wanted))], return_counts=True)

    def entries(self, places: npt.NDArray[Any]) -> Places:
        """Return the indices into `owners` of the hashes at these places, one hash after the other."""
        begins, ends = self.firsts[places], self.firsts[places + 1]
        # Concatenate the ranges from each begin to its end.
        shifts = np.repeat(ends - np.cumsum(ends - begins, dtype=np.uint32), ends - begins)
        return shifts + np.arange(shifts.size, dtype=np.uint32)

    def without(self, entries: Places) -> HashIndex:
        """Return an index without these entries of `owners`."""
        kept = np.ones(self.owners.size, dtype=np.bool_)
        kept[entries] = False
        before = np.zeros(kept.size + 1, dtype=np.uint32)
        np.cumsum(kept, dtype=np.uint32, out=before[1:])
        return replace(self, owners=self.owners[kept], firsts=before[self.firsts])

    def _places(self, wanted: Hashes) -> Places:
        """Return the places of the `wanted` hashes that are in the index, each once."""
        bits = (self.starts.size - 1).bit_length() - 1
        # Hashes are uniform, and there are more starts than hashes. So most lookups end after a step or two, where a
        # binary search needs one step per doubling of the index.
        same = (wanted >> np.uint64(64 - bits)).astype(np.int64)
        at, end = self.starts.take(same), self.starts.take(same + 1)
        found = [at[:0]]
        while at.size:
            inside = np.flatnonzero(at < end)
            at, end, wanted = at.take(inside), end.take(inside), wanted.take(inside)
            here = self.hashes.take(at)
            found.append(at[here == wanted])
            further = np.flatnonzero(here < wanted)
            at, end, wanted = at.take(further) + np.uint32(1), end.take(further), wanted.take(further)
        return np.unique(np.concatenate(found))


NGRAM_WORDS = 13
LEAST_WORDS = 8
"""Fewest words of a turn or reference that is compared; a text shorter than an n-gram counts as one n-gram."""
PROMPT_QUESTIONS = 20
"""Fewest questions, in a group or in all, of which n-grams shared by more than half are the benchmark's prompt."""
NEAR = 0.5
"""Lowest similarity of two near-duplicates."""
_NONE = np.zeros(0, dtype=np.uint64)


@dataclass(frozen=True, kw_only=True, eq=False)
class AskedTexts:
    """The questions of a benchmark: the text of their turns and references.

    ids: ids of the questions. lengths: n-gram lengths in words. ngrams, sizes: the questions that have each n-gram, and
    the number of distinct n-grams of each question.
    sketches, alike: the MinHash of each question, and a lookup of the questions that may be near-duplicates of a text.
    prompt_ngrams: number of n-grams that were left out because they belong to the benchmark's prompt.
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
            asked = [*(text for _, text in question.earlier), *question.turns]
            turns, references = ([words(part) for part in parts] for parts in (asked, question.references))
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
    if part.size >= LEAST_WORDS:
        yield min(part.size, NGRAM_WORDS)


def _distinct_ngrams(parts: Sequence[Hashes]) -> Hashes:
    found = [ngrams(part, length) for part in parts for length in _lengths(part)]
    return np.unique(np.concatenate([*found, _NONE]))


def _prompts(every: HashIndex, answers: Sequence[Hashes], groups: Sequence[str]) -> Places:
    """Return the entries of `every` that belong to the benchmark's prompt and do not characterise their question.

    These are n-grams of more than half of the questions of a group, or of all questions, if there are enough of them.
    N-grams of a question's references always stay.
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
    return np.where(np.asarray(questions) < PROMPT_QUESTIONS, np.inf, np.asarray(questions) / 2)


def _of_question(hashes: Hashes, number: Any) -> Hashes:
    return mixed(hashes ^ mixed(np.atleast_1d(number).astype(np.uint64)))


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
    """Return the numbers of questions, ascending, the n-grams that each shares with the sample, and similarities."""
    grams = [ngrams(part, length) for part in parts for length in asked.lengths]
    # Two measures, since each misses something: a copy in a long text shares n-grams but is no near-duplicate. A
    # question with a few changed words is a near-duplicate, but may share no 13 words.
    sharing, counts = asked.ngrams.common(np.concatenate(grams))
    sample = sketch(shingles(*parts))
    questions = np.union1d(sharing, np.array(asked.alike(sample), dtype=np.int64)).astype(np.int64)
    shared = np.zeros(questions.size, dtype=np.int64)
    shared[np.searchsorted(questions, sharing)] = counts
    similar = np.array([sample.jaccard(asked.sketches[number]) for number in questions], dtype=np.float64)
    kept = (shared > 0) | (similar >= NEAR)
    return questions[kept], shared[kept], similar[kept]


# Raise it when the same overlaps mark other questions as touched.
TOUCHED_CODE_VERSION = "1"
LEAST_SHARE = 0.05
"""Share of a question's n-grams that is more than common wording, however many samples have it."""
MOST_SAMPLES = 10
"""Most samples with a share below LEAST_SHARE of a question that still count as containing it.
More samples share only common wording, such as the frame of a web page. After Brown et al., 2020, appendix C, who leave
out n-grams of more than ten documents."""


def touched(
    contamination: pl.DataFrame, *, least: float = LEAST_SHARE, most_samples: int = MOST_SAMPLES
) -> pl.DataFrame:
    """Return the questions that occur in samples, by id.

    Columns: `question_id`, `samples` (the number of samples that contain it), `share` and `similarity` (the largest).
    Samples with at least `least` of the question's n-grams contain it, and so do its near-duplicates. Samples with a
    smaller share count only if there are at most `most_samples` of them.

    contamination: OVERLAPS of all shards, or of the training samples.
    """
    large = (pl.col("share") >= least) | (pl.col("similarity") >= NEAR)
    few = (~large).sum().over("question_id") <= most_samples
    return (
        contamination.filter(large | few)
        .group_by("question_id")
        .agg(samples=pl.len(), share=pl.max("share"), similarity=pl.max("similarity"))
        .sort("question_id")
    )


def without_touched(scores: pl.DataFrame, contamination: pl.DataFrame) -> pl.DataFrame:
    """Return the rows of `scores` (tables.SCORES, or others with a `question_id`) with questions that are in no sample.

    To compare values between variants, pass the `contamination` of all the data, so that each variant is measured on
    the same questions.
    """
    return scores.join(touched(contamination), on="question_id", how="anti", maintain_order="left")


UNTOUCHED = (
    *tables.EXPERIMENT,
    tables.Column(
        name="touched", dtype=pl.Int32(), description="Questions that the data contains, and that are left out here."
    ),
)


def untouched_rows(
    chosen: Benchmark,
    lines: Sequence[Line],
    scores: Mapping[str, pl.DataFrame],
    costs: Mapping[str, Cost],
    contamination: pl.DataFrame,
    *,
    reference: str,
) -> pl.DataFrame:
    """Return UNTOUCHED for one benchmark, one row per model; no rows if all questions are touched.

    contamination: OVERLAPS of all the data, so that all models are measured on the same questions. For the other
    arguments and the errors see experiment_rows.
    """
    left = {name: without_touched(table, contamination) for name, table in scores.items()}
    if all(table.is_empty() for table in left.values()):
        return pl.DataFrame(schema=tables.schema(UNTOUCHED))
    rows = experiment_rows(chosen, lines, left, costs, reference=reference)
    every, kept = (pl.concat([table["question_id"] for table in each.values()]).n_unique() for each in (scores, left))
    return rows.with_columns(touched=pl.lit(every - kept, dtype=pl.Int32))
