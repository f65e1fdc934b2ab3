"""Put the passages of a question into a long context: their document, or hard negatives around them."""

# Why hard negatives: among random passages, only the right ones are about the subject of the question. Passages that
# share rare terms with the question must be read to be ruled out.
#
# None may contain the evidence, or the question would have a second answer. Other wordings of the same fact are not
# recognised.
#
# What it costs: the documents of a shard are in memory, tokenised once, with an index of their terms. So memory grows
# with the documents of a shard, and `synthesis.shards` divides it.

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import polars as pl

from gateau_dagster.data.near_duplicates import normalised
from gateau_dagster.features.evaluation.contamination import AskedTexts
from gateau_dagster.features.synthesis.config import SynthesisConfig
from gateau_dagster.features.synthesis.passages import (
    SourceDocument,
    TextPassage,
    holds_question,
    split_passages,
    terms,
)
from gateau_dagster.tables import SAMPLE_ID, Column, schema

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

# Raise it when the same questions give other contexts.
CONTEXTS_CODE_VERSION = "2"
PLACES = pl.List(pl.Struct({"start": pl.Int64(), "end": pl.Int64()}))
CONTEXTS = (
    SAMPLE_ID,
    Column(
        name="form",
        dtype=pl.String(),
        description="document: a document or a part of it; passages: the passages among hard negatives.",
    ),
    Column(name="context", dtype=pl.String(), description="The context."),
    Column(name="tokens", dtype=pl.Int32(), description="Its tokens, by the tokenizer of models.long."),
    Column(
        name="positions", dtype=PLACES, description="Characters of each passage in the context: where the evidence is."
    ),
)
DOCUMENT, AMONG_PASSAGES = "document", "passages"
BETWEEN = "\n\n"
"""The text between passages."""
Offsets = npt.NDArray[np.int32]
_MOST_OF_A_TERM = 1000  # passages: a term of more of them says little


@dataclass(frozen=True, kw_only=True)
class Context:
    """A context, and the characters of each passage in it."""

    form: str
    text: str
    tokens: int
    positions: Sequence[tuple[int, int]]


@dataclass(frozen=True, kw_only=True, eq=False)
class PassagePool:
    """The documents of a shard: the source of contexts and of hard negatives.

    asked: the questions of benchmarks; passages that contain one are left out.
    """

    texts: Mapping[str, str]
    tokenizer: PreTrainedTokenizerBase
    size: int
    asked: Sequence[AskedTexts] = ()
    _offsets: dict[str, Offsets] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        documents: Iterable[SourceDocument],
        tokenizer: PreTrainedTokenizerBase,
        size: int,
        asked: Sequence[AskedTexts] = (),
    ) -> PassagePool:
        """Return the pool. size: approximate number of words of a passage."""
        return cls(texts={each.name: each.text for each in documents}, tokenizer=tokenizer, size=size, asked=asked)

    def offsets(self, name: str) -> Offsets:
        """Return the first and one-past-last characters of each token of a document, in order, without empty tokens."""
        from gateau_dagster.models.prompt import token_offsets

        if name not in self._offsets:
            found = np.array(token_offsets(self.tokenizer, self.texts[name]), dtype=np.int32).reshape(-1, 2)
            self._offsets[name] = found[found[:, 1] > found[:, 0]]
        return self._offsets[name]

    def tokens(self, text: str) -> int:
        """Return the number of tokens of a text."""
        from gateau_dagster.models.prompt import encode

        return len(encode(self.tokenizer, text))

    @cached_property
    def passages(self) -> list[tuple[str, TextPassage]]:
        """Return every passage with its document, except passages that contain a benchmark's question."""
        return [
            (name, each)
            for name in sorted(self.texts)
            for each in split_passages(self.texts[name], self.size)
            if not holds_question(each.text, self.asked)
        ]

    @cached_property
    def by_document(self) -> dict[str, list[str]]:
        """Return the texts of `passages` by document."""
        found: dict[str, list[str]] = {}
        for name, passage in self.passages:
            found.setdefault(name, []).append(passage.text)
        return found

    @cached_property
    def _by_term(self) -> dict[str, list[int]]:
        found: dict[str, list[int]] = {}
        for place, (_, passage) in enumerate(self.passages):
            for term in terms(passage.text):
                found.setdefault(term, []).append(place)
        return found

    def negatives(self, row: Mapping[str, Any], rng: np.random.Generator) -> Iterator[str]:
        """Yield passages of this and other documents that do not contain the evidence, the most relevant first.

        Relevance is the sum of the inverse document frequencies of the terms shared with the question and the passages.
        """
        used = {(row["document"], each["start"]) for each in row["passages"]}
        wanted = terms(" ".join([row["question"], *(each["text"] for each in row["passages"])]))
        scores: Counter[int] = Counter()
        for term in sorted(wanted):
            places = self._by_term.get(term, [])
            # Frequent terms say little, and reading all their passages for each question would be quadratic.
            for place in places if len(places) <= max(_MOST_OF_A_TERM, len(self.passages) // 20) else ():
                scores[place] += math.log(1 + len(self.passages) / len(places))  # pyright: ignore[reportArgumentType]
        evidence = [found for each in row["evidence"] if (found := normalised(each))]
        ties = rng.permutation(len(self.passages))
        first = sorted(scores, key=lambda place: (-scores[place], ties[place]))
        for place in chain(first, (int(each) for each in ties if each not in scores)):
            name, passage = self.passages[place]
            if (name, passage.start) in used:
                continue
            text = normalised(passage.text)
            if not any(each in text for each in evidence):
                yield passage.text


def context_of(row: Mapping[str, Any], pool: PassagePool, seed: int) -> Context:
    """Return the context of a row of QUESTIONS, at most `row["length"]` tokens unless its passages need more.

    It is the whole document if that has between half of `row["length"]` tokens and all of them. ProLong's question
    answering takes a part of a longer document, and its summaries take the summarised chunks. Otherwise the context is
    made of hard negatives in as many equal parts as there are passages, with one passage in each part, in order.
    """
    rng = np.random.default_rng([seed, int(row["sample_id"][:8], 16)])
    text, length = pool.texts[row["document"]], int(row["length"])
    whole = len(pool.offsets(row["document"]))
    if row["kind"] == "prolong_summary":
        return _part(row, pool, length, rng, at_start=True)
    if row["kind"] == "prolong_qa" and whole > length:
        return _part(row, pool, length, rng, at_start=False)
    if row["kind"] == "prolong_qa" or (row["kind"] != "prolong_rag" and length / 2 <= whole <= length):
        positions = [(each["start"], each["end"]) for each in row["passages"]]
        return Context(form=DOCUMENT, text=text, tokens=whole, positions=positions)
    return _among_negatives(row, pool, length, rng)


def _part(
    row: Mapping[str, Any], pool: PassagePool, length: int, rng: np.random.Generator, *, at_start: bool
) -> Context:
    """Return at most `length` tokens of the document: from the start of the passages, or at random around them."""
    text, offsets = pool.texts[row["document"]], pool.offsets(row["document"])
    start, end = row["passages"][0]["start"], row["passages"][-1]["end"]
    first = int(np.searchsorted(offsets[:, 0], start, side="right")) - 1
    last = int(np.searchsorted(offsets[:, 1], end, side="left")) + 1
    if at_start:
        begin, upto = first, min(last, first + length)
    else:
        least = max(0, last - length)
        begin = int(rng.integers(least, max(least, min(first, len(offsets) - length)) + 1))
        upto = min(len(offsets), begin + length)
    a, b = int(offsets[begin, 0]), int(offsets[upto - 1, 1])
    a = max(a, start) if at_start else a
    inside = [(max(each["start"], a) - a, min(each["end"], b) - a) for each in row["passages"] if each["start"] < b]
    part = text[a:b]
    return Context(
        form=DOCUMENT, text=part, tokens=upto - begin, positions=[each for each in inside if each[0] < each[1]]
    )


def _among_negatives(row: Mapping[str, Any], pool: PassagePool, length: int, rng: np.random.Generator) -> Context:
    passages = [each["text"] for each in row["passages"]]
    between = pool.tokens(BETWEEN)
    room = length - sum(pool.tokens(each) + between for each in passages)
    chosen: list[str] = []
    if row["kind"] == "prolong_rag":
        own = pool.by_document.get(row["document"], [])
        others: Iterable[str] = (own[place] for place in rng.permutation(len(own)) if own[place] not in passages)
    else:
        others = pool.negatives(row, rng)
    for text in others:
        tokens = pool.tokens(text) + between
        if tokens > room:
            break
        room -= tokens
        chosen.append(text)
    # Shuffled: in order of relevance, the place of a passage would tell how relevant it is.
    order = [chosen[place] for place in rng.permutation(len(chosen))]
    count = len(passages)
    # One passage in each part, so that they stay far apart in the context.
    borders = [round(len(order) * part / count) for part in range(count + 1)]
    pieces: list[tuple[str, bool]] = []
    for number, passage in enumerate(passages):
        part = [(text, False) for text in order[borders[number] : borders[number + 1]]]
        part.insert(int(rng.integers(len(part) + 1)), (passage, True))
        pieces += part
    at, positions = 0, []
    for text, is_passage in pieces:
        if is_passage:
            positions.append((at, at + len(text)))
        at += len(text) + len(BETWEEN)
    whole = BETWEEN.join(text for text, _ in pieces)
    return Context(form=AMONG_PASSAGES, text=whole, tokens=pool.tokens(whole), positions=positions)


def contexts(
    questions: pl.DataFrame,
    documents: Iterable[SourceDocument],
    tokenizer: PreTrainedTokenizerBase,
    options: SynthesisConfig,
    asked: Sequence[AskedTexts] = (),
) -> pl.DataFrame:
    """Return CONTEXTS of the rows of QUESTIONS that have no fault and have passages from the document.

    asked: the questions of benchmarks; hard negatives that contain one are left out.
    """
    pool = PassagePool.of(documents, tokenizer, options.passage_words, asked)
    rows = []
    for row in questions.filter(fault="").sort("sample_id").iter_rows(named=True):
        if not row["passages"] or not all(each["text"] for each in row["passages"]):
            continue
        found = context_of(row, pool, options.seed)
        places = [{"start": start, "end": end} for start, end in found.positions]
        rows.append((row["sample_id"], found.form, found.text, found.tokens, places))
    return pl.DataFrame(rows, schema=schema(CONTEXTS), orient="row")
