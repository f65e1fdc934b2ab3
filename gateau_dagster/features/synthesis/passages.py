"""Read the documents of `synthesis` by shard, and choose passages of each document for questions."""

# Why passages that share a term: a question must combine facts of several passages, and two random ones have nothing to
# combine. A term of many passages, such as the subject of the document, connects nothing. So rare terms count, and
# names before others.
#
# Why far apart: the samples are to teach reading over a distance. Two facts in neighbouring passages would need no long
# context.
#
# Why candidates depend only on their document, the options and a seed: another document then changes few candidates.
# The paid replies about the others stay valid.

from __future__ import annotations

import re
from collections import Counter, deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from gateau_dagster.data.index import no_usable_sample
from gateau_dagster.data.near_duplicates import near_duplicates, normalised, shingles, sketch
from gateau_dagster.data.rejects import rejects_among
from gateau_dagster.data.sample import Reject, shard_of, text_digest
from gateau_dagster.data.sources import FILE_DIGESTS, SourceFile, content_signature, input_signature, resolve_files
from gateau_dagster.data.text_corpus import CorpusText, TextFields, read_texts
from gateau_dagster.errors import GateauError
from gateau_dagster.features.evaluation.contamination import AskedTexts, ngrams, words
from gateau_dagster.features.synthesis.config import SynthesisConfig
from gateau_dagster.progress import Progress, silent
from gateau_dagster.readable import plural
from gateau_dagster.storage.files import Files
from gateau_dagster.storage.local import keeping
from gateau_dagster.storage.parquet import read_local, write_parquet
from gateau_dagster.tables import SAMPLE_ID, Column

# Raise it when the same documents give other passages.
PASSAGES_CODE_VERSION = "2"
SPAN = pl.Struct({"start": pl.Int64(), "end": pl.Int64(), "text": pl.String()})
PASSAGES = (
    SAMPLE_ID,
    Column(name="document", dtype=pl.String(), description="First 32 digits of the SHA-256 of the document's text."),
    Column(name="kind", dtype=pl.String(), description="Kind of the question."),
    Column(name="number", dtype=pl.Int32(), description="Which of several candidates with the same passages, from 0."),
    Column(name="length", dtype=pl.Int32(), description="Greatest length of the context, in tokens of models.long."),
    Column(
        name="term", dtype=pl.String(), description="The term that the passages share; empty for kinds that need none."
    ),
    Column(name="passages", dtype=pl.List(SPAN), description="Characters in the document, and text, of each passage."),
)
PROLONG_KINDS = {"prolong_qa": 0.4, "prolong_rag": 0.3, "prolong_summary": 0.3}
"""The kinds of ProLong's recipe with their shares (section 5 and appendix B.5)."""
PASSAGES_OF = {"two_passages": 2, "compare": 2, "count": 3, "order": 3, "summary": 4, "self": 0, "prolong_qa": 1,
               "prolong_rag": 1}  # fmt: skip
"""The number of passages of a question, by kind; `self` finds its passages, `prolong_summary` reads a run of chunks."""
_INDEX = pl.Schema({"document": pl.String(), "shard": pl.Int32(), "file": pl.Int32(), "record": pl.Int64(),
                    "characters": pl.Int64(), "rejected": pl.String(), "reason": pl.String()})  # fmt: skip
_KEY = b"gateau_documents_2"
# A sentence's or a line's end.
_SENTENCE = re.compile(r"(?<=[.!?])\s+|(?<=[.!?][\"'”’)])\s+|(?<=[。！？])|\n+")
_WORD = re.compile(r"[\u3400-\u9fff]{2}|[^\W_\u3400-\u9fff][\w'’-]*")
_SHORTEST_TERM = 3  # characters
_SIMILAR = 0.5  # of two passages of which one is left out
_CHUNK = 10  # passages' words of a chunk that is summarised
_WORDS_OF_A_TOKEN = 0.7
_TRIES = 32  # draws in a row that add no candidate of a kind, after which a document has no more of it


@dataclass(frozen=True, kw_only=True)
class TextPassage:
    """A passage: its characters in the document, and its text."""

    start: int
    end: int
    text: str


@dataclass(frozen=True, kw_only=True)
class SourceDocument:
    """A document; its id is the beginning of the digest of its text, so renaming the file changes nothing."""

    name: str
    text: str


@dataclass(frozen=True, kw_only=True, eq=False)
class DocumentIndex:
    """The documents by shard, without their texts, and the records that have no text (_INDEX)."""

    files: tuple[SourceFile, ...]
    table: pl.DataFrame
    fields: TextFields

    def shard(self, number: int) -> pl.DataFrame:
        """Return the rows of a shard's documents, by id."""
        return self.table.filter(pl.col("shard") == number, pl.col("document").is_not_null()).sort("document")

    def digest(self, number: int) -> str:
        """Return a digest of the documents and the rejected records of a shard."""
        rejects = [part for each in self.rejected(number) for part in ("-", each.sample_id, each.reason)]
        return text_digest([*self.shard(number)["document"], *rejects])

    def rejected(self, number: int) -> list[Reject]:
        """Return the records without text of a shard, by place; a hash of the place determines the shard."""
        rows = self._rejects.filter(pl.col("shard") == number).select("rejected", "reason").sort("rejected", "reason")
        return [Reject(sample_id=name, reason=reason) for name, reason in rows.iter_rows()]

    @property
    def _rejects(self) -> pl.DataFrame:
        return self.table.filter(pl.col("document").is_null())

    def warnings(self, options: SynthesisConfig, made: Mapping[int, int]) -> list[str]:
        """Return a sentence about rejected records, and one if there are fewer candidates than `options.count`.

        made: the number of candidates by shard, for shards with chosen passages.
        """
        found = []
        rejects = rejects_among(self._rejects.select("reason", sample_id="rejected"), self.table.height, named=True)
        if rejects.count:
            found.append(f"synthesis.documents: {rejects.sentence('record')}")
        documents = dict(self.table.drop_nulls("document")["shard"].value_counts().iter_rows())
        empty = sum(number not in documents for number in range(options.shards))
        most = sum(made.get(number, quota(options, number)) for number in documents)
        if most < options.count:
            at_most = "" if documents.keys() <= made.keys() else "at most "
            reason, cure = "too few documents", "add documents, or lower synthesis.count"
            if empty:
                reason = f"{empty:,} of {plural(options.shards, 'shard')} have no document"
                cure = "lower synthesis.shards, or add documents"
            found.append(
                f"synthesis.count: {at_most}{most:,} of {plural(options.count, 'candidate')}: {reason}; {cure}"
            )
        return found

    def documents(self, number: int) -> Iterator[SourceDocument]:
        """Yield the documents of a shard, by id.

        Raises:
            GateauError: a file no longer holds what the index recorded.
        """
        rows = self.shard(number)
        wanted: dict[int, list[int]] = {}
        for file, record in rows.select("file", "record").iter_rows():
            wanted.setdefault(file, []).append(record)
        names = {*rows["document"]}
        found: dict[str, SourceDocument] = {}
        for text in read_texts(self.files, self.fields, lambda _: None, plain_texts=True, wanted=wanted):
            if isinstance(text, CorpusText) and (name := text.digest[:32]) in names:
                found[name] = SourceDocument(name=name, text=text.text)
        if len(found) < len(names):
            raise GateauError(
                "data.changed",
                "synthesis.documents: a document changed while it was read: run again when nothing writes the files. "
                "If nothing does, set synthesis.verify: content",
            )
        yield from (found[name] for name in sorted(found))


def document_files(options: SynthesisConfig, folder: Path) -> list[SourceFile]:
    """Return the files of the documents.

    Raises:
        GateauError: a path matches nothing, or its storage cannot be reached; the message names the key.
    """
    try:
        return resolve_files(options.documents, folder, plain_texts=True)
    except GateauError as error:
        raise error.reworded(f"synthesis.documents: {error}") from error


def document_index(options: SynthesisConfig, folder: Path, cache: Path, progress: Progress = silent) -> DocumentIndex:
    """Return the index of the documents; it is read from the folder `cache` if it was saved there for the same files.

    Raises:
        GateauError: no document has a text (the message names the most frequent reasons), or see `document_files`.
    """
    files, fields = document_files(options, folder), TextFields(text=options.text_field)
    content = content_signature(files, cache / FILE_DIGESTS, "content") if options.verify == "content" else ""
    signature = text_digest([input_signature(files), str(options.shards), options.text_field, content])
    path = cache / f"documents-{text_digest([str(folder.absolute()), str(options.documents)])[:16]}.parquet"
    table = _saved(path, signature)
    if table is None:
        table = _scan(files, fields, options.shards, progress)
        with keeping(path):
            writing = partial(write_parquet, table, {_KEY: signature.encode()})
            Files(str(path.parent)).write_by(path.name, writing)
    if not table["document"].count():
        rejected = table.select("reason", sample_id="rejected")
        raise GateauError(
            "data.no_usable_record", no_usable_sample("synthesis.documents", options.documents, rejected, "document")
        )
    return DocumentIndex(files=tuple(files), table=table, fields=fields)


def _saved(path: Path, signature: str) -> pl.DataFrame | None:
    """Return the saved index, which is a cache; None if it is missing, damaged or of other files."""
    if not path.is_file():
        return None
    try:
        table, metadata = read_local(path)
        return table if metadata[_KEY] == signature.encode() else None
    except (OSError, KeyError, TypeError, ValueError):
        return None


def _scan(files: Sequence[SourceFile], fields: TextFields, shards: int, progress: Progress) -> pl.DataFrame:
    rows: dict[str, tuple[Any, ...]] = {}
    rejected: list[tuple[Any, ...]] = []
    total, done = sum(file.size for file in files), 0

    def note(count: int) -> None:
        nonlocal done
        done = min(total, done + count)
        progress(done, total, "bytes", f"{len(rows)} documents")

    for text in read_texts(files, fields, note, plain_texts=True):
        if isinstance(text, Reject):
            rejected.append((None, shard_of(text.sample_id, shards), None, None, None, text.sample_id, text.reason))
        else:
            digest = text.digest
            shard = int(digest[:16], 16) % shards
            rows.setdefault(digest, (digest[:32], shard, text.file, text.record, len(text.text), None, None))
    return pl.DataFrame([*rows.values(), *rejected], schema=_INDEX, orient="row")


def split_passages(text: str, size: int) -> list[TextPassage]:
    """Return runs of whole sentences of about `size` words, in order; together they hold all sentences.

    A sentence of more than twice as many words is cut between words.
    """
    found: list[TextPassage] = []
    start, count = 0, 0
    for begin, end in _pieces(text, size):
        if count == 0:
            start = begin
        count += max(1, len(_WORD.findall(text, begin, end)))
        if count >= size:
            found.append(TextPassage(start=start, end=end, text=text[start:end]))
            count = 0
    if count:
        end = len(text.rstrip())
        if found and count < size / 2:
            last = found.pop()
            start = last.start
        found.append(TextPassage(start=start, end=end, text=text[start:end]))
    return found


def _pieces(text: str, size: int) -> Iterator[tuple[int, int]]:
    """Yield the places of sentences, or of parts of very long sentences, without the white space around them."""
    begin = 0
    for end, after in [*((match.start(), match.end()) for match in _SENTENCE.finditer(text)), (len(text), len(text))]:
        part = text[begin:end]
        if part.strip():
            first = begin + len(part) - len(part.lstrip())
            last = begin + len(part.rstrip())
            found = [match.start() for match in re.finditer(r"\S+", text[first:last])]
            for place in range(0, len(found), 2 * size):
                upto = found[place + 2 * size] if place + 2 * size < len(found) else last - first
                yield first + found[place], first + len(text[first : first + upto].rstrip())
        begin = after


def terms(text: str) -> set[str]:
    """Return the words of a text that passages may share; for ideographs, pairs of neighbours."""
    return {word.casefold() for word in _WORD.findall(text) if len(word) >= _SHORTEST_TERM or word[0] >= "\u3400"}


def _names(text: str) -> set[str]:
    found = re.findall(r"(?<=[\w,;] )([A-Z][\w'’-]+|\w*\d[\w-]*)", text)
    return {word.casefold() for word in found if len(word) >= _SHORTEST_TERM}


def usable_passages(text: str, size: int, asked: Sequence[AskedTexts] = ()) -> list[TextPassage]:
    """Return the passages of a document, except near-duplicates of earlier ones and those with benchmark questions.

    `asked`: the questions. A passage with one of their n-grams (13 words by default) is left out.
    """
    found = split_passages(text, size)
    groups = near_duplicates([sketch(shingles(normalised(each.text))) for each in found], _SIMILAR)
    first = [passage for place, passage in enumerate(found) if groups[place] == place]
    return [passage for passage in first if not holds_question(passage.text, asked)]


def holds_question(text: str, asked: Sequence[AskedTexts]) -> bool:
    """Return whether a text has an n-gram of one of these questions."""
    if not asked:
        return False
    hashes = words(text)
    return any(
        each.ngrams.common(np.unique(ngrams(hashes, length)))[0].size for each in asked for length in each.lengths
    )


def candidates(
    documents: Iterable[SourceDocument], options: SynthesisConfig, count: int, asked: Sequence[AskedTexts] = ()
) -> list[Mapping[str, Any]]:
    """Return at most `count` rows of PASSAGES about the documents of a shard; fewer if the documents offer no more.

    The documents take turns by id. The candidates of a document depend only on its text and the options. A new document
    therefore takes the place of some candidates, but changes none. All texts stay in memory, but a document is only
    split when its turn comes.
    """
    by_id = sorted(documents, key=lambda document: document.name)
    waiting = deque(_of_document(document, options, asked) for document in by_id)
    rows: list[Mapping[str, Any]] = []
    while waiting and len(rows) < count:
        turn = waiting.popleft()
        row = next(turn, None)
        if row is not None:
            rows.append(row)
            waiting.append(turn)
    return sorted(rows, key=lambda row: row["sample_id"])


def _of_document(
    document: SourceDocument, options: SynthesisConfig, asked: Sequence[AskedTexts]
) -> Iterator[Mapping[str, Any]]:
    """Yield different candidates about a document until it offers no more.

    A kind that the document does not allow, or no longer allows, is left out. The others keep their proportions.
    """
    source = _Source(document=document, options=options, asked=asked)
    kinds = {
        kind: share for kind, share in (options.kinds if options.is_verified else PROLONG_KINDS).items() if share > 0
    }
    rng = np.random.default_rng([options.seed, int(document.name[:8], 16), int(document.name[8:16], 16)])
    seen: set[tuple[Any, ...]] = set()
    own = 0  # candidates of kind self, which differ only in their number
    while kinds:
        kind, length = str(_drawn(rng, kinds)), int(_drawn(rng, options.lengths))
        number = own if kind == "self" else 0
        for _ in range(_TRIES):
            term, chosen = source.draw(rng, kind, length)
            key = (kind, number, *(each.start for each in chosen))
            fits = number < len(source.usable) if kind == "self" else bool(chosen)
            if fits and key not in seen:
                break
        else:
            del kinds[kind]
            continue
        own += kind == "self"
        seen.add(key)
        places = [f"{each.start}-{each.end}" for each in chosen]
        yield {
            "sample_id": text_digest([document.name, kind, str(length), str(number), *places])[:32],
            "document": document.name,
            "kind": kind,
            "number": number,
            "length": length,
            "term": term,
            "passages": [{"start": each.start, "end": each.end, "text": each.text} for each in chosen],
        }


def _drawn(rng: np.random.Generator, shares: Mapping[Any, float]) -> Any:
    # Sorted, so that the draw does not depend on the order of the keys in the file.
    names = sorted(shares)
    weights = np.array([shares[name] for name in names])
    return names[int(rng.choice(len(names), p=weights / weights.sum()))]


def _shared_terms(passages: Sequence[TextPassage]) -> dict[str, list[int]]:
    """Return the passages of each term that several but only few of them share; only names if there are any."""
    most = max(2, len(passages) // 4)
    sets = [terms(passage.text) for passage in passages]
    counts = Counter(term for found in sets for term in found)
    names = set[str]().union(*(_names(passage.text) for passage in passages))
    rare = {term for term, count in counts.items() if 2 <= count <= most}
    kept = sorted(rare & names or rare)
    return {term: [place for place, found in enumerate(sets) if term in found] for term in kept}


@dataclass(frozen=True, kw_only=True, eq=False)
class _Source:
    """The parts of a document that its candidates are drawn from, computed once when the first one is drawn."""

    document: SourceDocument
    options: SynthesisConfig
    asked: Sequence[AskedTexts]
    _terms: dict[int, list[str]] = field(default_factory=dict)

    @cached_property
    def usable(self) -> list[TextPassage]:
        return usable_passages(self.document.text, self.options.passage_words, self.asked)

    @cached_property
    def _shared(self) -> dict[str, list[int]]:
        return _shared_terms(self.usable)

    @cached_property
    def _chunks(self) -> list[TextPassage]:
        return split_passages(self.document.text, _CHUNK * self.options.passage_words)

    def draw(self, rng: np.random.Generator, kind: str, length: int) -> tuple[str, list[TextPassage]]:
        """Return the term and the passages of one candidate; no passages if none fit."""
        if kind == "self" or not self.usable:
            return "", []
        if kind == "prolong_summary":
            return "", self._run(rng, length)
        count = PASSAGES_OF[kind]
        if count == 1:
            return "", [self.usable[int(rng.integers(len(self.usable)))]]
        found = self._terms_of(count)
        if not found:
            return "", []
        term = found[int(rng.integers(len(found)))]
        order = [self._shared[term][each] for each in rng.permutation(len(self._shared[term]))]
        places = far_apart(order, self.usable, count, self.document)
        return term, [self.usable[place] for place in sorted(places)] if len(places) == count else []

    def _run(self, rng: np.random.Generator, length: int) -> list[TextPassage]:
        """Return a run of chunks of about `length` tokens; no chunks if they contain a benchmark's question."""
        count = max(1, round(length * _WORDS_OF_A_TOKEN / (_CHUNK * self.options.passage_words)))
        first = int(rng.integers(max(1, len(self._chunks) - count + 1)))
        run = self._chunks[first : first + count]
        return [] if holds_question(self.document.text[run[0].start : run[-1].end], self.asked) else run

    def _terms_of(self, count: int) -> list[str]:
        # Counted once for each number of passages, since a document draws many times. Scanning in document order misses
        # no term.
        if count not in self._terms:
            self._terms[count] = [
                term
                for term, places in self._shared.items()
                if len(far_apart(places, self.usable, count, self.document)) == count
            ]
        return self._terms[count]


def far_apart(
    places: Collection[int], usable: Sequence[TextPassage], count: int, document: SourceDocument
) -> list[int]:
    """Return up to `count` of these passages, in order, each far from all chosen before.

    Two passages are far apart if at least 1 / (2 count) of the document lies between their beginnings.
    """
    least = len(document.text) / (2 * count)
    found: list[int] = []
    for place in places:
        if all(abs(usable[place].start - usable[other].start) >= least for other in found):
            found.append(place)
        if len(found) == count:
            break
    return found


def quota(options: SynthesisConfig, shard: int) -> int:
    """Return the most candidates of a shard, whatever its documents are, so that a new document changes one shard."""
    return options.count // options.shards + (shard < options.count % options.shards)
