"""Turn long texts into sequences to train on: whole if they fit, otherwise cut one after the other."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import TYPE_CHECKING, Literal

import numpy as np
import polars as pl

from gateau_dagster.config.training import MixConfig
from gateau_dagster.config.values import part_of
from gateau_dagster.data.sample import Reject
from gateau_dagster.data.sources import SourceFile
from gateau_dagster.data.text_corpus import CorpusText, TextFields, read_texts
from gateau_dagster.errors import GateauError, UnscorableSampleError
from gateau_dagster.models.prompt import encode
from gateau_dagster.training.batching import mix_order

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


Origin = Literal["long", "short"]


def wanted_samples(
    selected: pl.DataFrame, short: pl.DataFrame | None, *, mix: MixConfig, seed: int
) -> dict[Origin, pl.DataFrame]:
    """Return the rows of both tables that the mix takes, in their order, with a column `copies` (at least 1).

    Args:
        selected: long samples with `sample_id`, `source`, and `rank` if `mix.long_fraction` is below 1.
        short: conversations with `sample_id` and `source`, or None.
        mix: `training.mix`; a source of its weights may be in the data without a sample in these tables.
        seed: of the hash that decides which samples occur once more than others of their source.

    Raises:
        GateauError: a mix without long samples has no conversations.
    """
    if mix.without_long:
        if short is None:
            raise GateauError(
                "training.no_conversations",
                "training.mix.without_long leaves out the long samples, and there are no short conversations. "
                "Add short_chat, or set training.mix.without_long: false.",
            )
        selected = selected.clear()
    elif mix.long_fraction < 1:
        count = part_of(selected.height, mix.long_fraction)
        selected = selected.filter(selected["rank"].rank("ordinal") <= count)
    tables: dict[Origin, pl.DataFrame] = {"long": selected}
    if short is not None:
        tables["short"] = short
    return {origin: _with_copies(table, origin, mix.weights, seed) for origin, table in tables.items()}


def _with_copies(table: pl.DataFrame, origin: Origin, weights: Mapping[str, float], seed: int) -> pl.DataFrame:
    copies = pl.Series("copies", copies_of(table, origin, weights, seed), dtype=pl.Int64)
    return table.with_columns(copies).filter(pl.col("copies") > 0)


def copies_of(table: pl.DataFrame, origin: Origin, weights: Mapping[str, float], seed: int) -> list[int]:
    """Return how often each row occurs in an epoch: its source's weight rounded down, or once more for the fraction.

    Of n samples of weight 2.3 all occur twice, and round(0.3 n) a third time. A hash of their ids chooses these, so
    that another sample changes the number of at most one.

    Args:
        table: `sample_id` and `source`.
        origin: of all rows.
        weights: by source; 1 for other sources.
        seed: of the hash.
    """
    ids, sources = table["sample_id"].to_list(), table["source"].to_list()
    copies = [math.floor(weights.get(source, 1.0)) for source in sources]
    for source, weight in weights.items():
        rows = [row for row, its in enumerate(sources) if its == source]
        once_more = round((weight - math.floor(weight)) * len(rows))
        lot = mix_order([(f"weight/{origin}", ids[row]) for row in rows], seed)
        for place in lot[:once_more]:
            copies[rows[place]] += 1
    return copies


_BETWEEN = "\n\n"  # the joined parts of a text
_CHARACTERS_A_TOKEN = 4.0
"""The estimate before any text is tokenised; the measured rate then replaces it."""


@dataclass(frozen=True, kw_only=True)
class TextPiece:
    """A sequence: `input_ids` int32 [n], n >= 2. truncated_tokens: how many were cut off to reach a number of
    tokens.
    """

    name: str
    source: str
    input_ids: np.ndarray
    truncated_tokens: int = 0

    def cut(self, length: int) -> TextPiece:
        """Return the first `length` tokens."""
        dropped = len(self.input_ids) - length
        return replace(self, input_ids=self.input_ids[:length], truncated_tokens=self.truncated_tokens + dropped)


def pieces_of(text: CorpusText, tokenizer: PreTrainedTokenizerBase, *, length: int) -> list[TextPiece]:
    """Return the text's sequences, of `length` tokens except for the last.

    Each begins with bos, as every prompt does, because the model reads it on its own. eos follows the text's end if it
    has room. A tokenizer may lack either.

    Raises:
        UnscorableSampleError: it has no tokens, or cannot be tokenised.
    """
    bos, eos = (
        (token,) if isinstance(token, int) else () for token in (tokenizer.bos_token_id, tokenizer.eos_token_id)
    )
    tokens = encode(tokenizer, text.text)
    body, room = tokens + eos, length - len(bos)
    # Make no sequence of eos alone, and none of one token, which no token precedes.
    starts = [start for start in range(0, len(tokens), room) if len(bos) + len(body) - start >= 2]
    if not starts:
        raise UnscorableSampleError("the text has no tokens to learn")
    pieces = []
    for number, start in enumerate(starts, start=1):
        name = text.name if len(starts) == 1 else f"{text.name}#{number}"
        ids = np.asarray(bos + body[start : start + room], dtype=np.int32)
        pieces.append(TextPiece(name=name, source=text.domain, input_ids=ids))
    return pieces


@dataclass(kw_only=True)
class TextSource:
    """The texts of one origin, which it reads, draws at random and tokenises.

    join_by: the field of records whose texts of one value are joined, in the files' order, into one text.
    least_tokens: of a text; shorter ones are rejected. rejected: filled while texts are read. given: the number of
    texts, including rejected ones, once they are drawn.
    """

    origin: Origin
    files: Sequence[SourceFile]
    text_field: str
    join_by: str | None = None
    least_tokens: int = 0
    on_bytes: Callable[[int], None]
    rejected: list[Reject] = field(default_factory=list)
    given: int = 0

    def draw(
        self, tokenizer: PreTrainedTokenizerBase, *, length: int, tokens: int | None, seed: int
    ) -> list[TextPiece]:
        """Return pieces of texts in random order, at least `tokens` tokens in all if the texts suffice (None: all).

        A hash of seed and name orders the texts, so another text does not move others. The files are read once to list
        the texts, and again for those that are drawn; few more are tokenised than needed.

        Raises GateauError if a text has changed when it is read again.
        """
        parts: dict[str, list[_Known]] = {}
        for text in self:
            place = _Known(name=_whole(text), places=((text.file, text.record),), characters=len(text.text))
            parts.setdefault(place.name, []).append(place)
        known = [_Known.joined(each) for each in parts.values()]
        self.given = len(known) + len(self.rejected)
        waiting = [known[at] for at in mix_order([(f"text/{self.origin}", each.name) for each in known], seed)]
        found: list[TextPiece] = []
        drawn = characters = 0
        while waiting and (tokens is None or drawn < tokens):
            rate = characters / drawn if drawn else _CHARACTERS_A_TOKEN
            part = _first_of(waiting, None if tokens is None else rate * (tokens - drawn))
            waiting = waiting[len(part) :]
            tokenised = self._tokenised(part, tokenizer, length)
            found += [piece for each in part for piece in tokenised.get(each.name, [])]
            drawn = sum(len(piece.input_ids) for piece in found)
            characters += sum(each.characters for each in part)
        return found

    def __iter__(self) -> Iterator[CorpusText]:
        """Yield all texts, in the files' order, after clearing the rejects of an earlier reading."""
        self.rejected.clear()
        yield from self._texts(None)

    def _texts(self, wanted: Mapping[int, set[int]] | None) -> Iterator[CorpusText]:
        fields = TextFields(text=self.text_field, whole=self.join_by)
        for found in read_texts(self.files, fields, self.on_bytes, plain_texts=True, wanted=wanted):
            if isinstance(found, CorpusText):
                yield found
            elif wanted is None:
                self.rejected.append(found)

    def _tokenised(
        self, part: Sequence[_Known], tokenizer: PreTrainedTokenizerBase, length: int
    ) -> dict[str, list[TextPiece]]:
        """Return the pieces of these texts by name; an unusable text is rejected and has none."""
        wanted: dict[int, set[int]] = {}
        for file, record in (place for each in part for place in each.places):
            wanted.setdefault(file, set()).add(record)
        missing = {each.name: each for each in part}
        read: dict[str, list[CorpusText]] = {}
        found: dict[str, list[TextPiece]] = {}
        for text in self._texts(wanted):
            name = _whole(text)
            if name not in missing:
                raise self._changed(text.name)
            texts = read.setdefault(name, [])
            texts.append(text)
            if len(texts) < len(missing[name].places):
                continue
            whole = replace(texts[0], name=name, text=_BETWEEN.join(each.text for each in read.pop(name)))
            if missing.pop(name).characters != len(whole.text):
                raise self._changed(name)
            try:
                found[name] = self._pieces(whole, tokenizer, length)
            except UnscorableSampleError as error:
                self.rejected.append(Reject(sample_id=name, reason=str(error)))
        if missing:
            raise self._changed(min(missing))
        return found

    def _changed(self, name: str) -> GateauError:
        return GateauError(
            "data.changed",
            f"{self.option}: {name} changed while it was read: run again when nothing writes the files",
        )

    @property
    def option(self) -> str:
        """Return the configuration key of its files."""
        return "texts" if self.origin == "long" else "short_texts"

    def _pieces(self, text: CorpusText, tokenizer: PreTrainedTokenizerBase, length: int) -> list[TextPiece]:
        pieces = pieces_of(text, tokenizer, length=length)
        total = sum(len(piece.input_ids) for piece in pieces)
        if total < self.least_tokens:
            raise UnscorableSampleError(f"too short: {total} tokens, and least_tokens is {self.least_tokens}")
        return pieces


@dataclass(frozen=True, kw_only=True, slots=True)
class _Known:
    """A text's length and the places (file, record) of its parts, without its content."""

    name: str
    places: tuple[tuple[int, int], ...]
    characters: int

    @classmethod
    def joined(cls, parts: Sequence[_Known]) -> _Known:
        """Return the parts of a text as one."""
        between = len(_BETWEEN) * (len(parts) - 1)
        places = tuple(place for each in parts for place in each.places)
        return cls(name=parts[0].name, places=places, characters=sum(each.characters for each in parts) + between)


def _whole(text: CorpusText) -> str:
    """Return the name of the text that a text is a part of: its own, if of none."""
    return text.whole or text.name


def _first_of(waiting: Sequence[_Known], characters: float | None) -> list[_Known]:
    """Return texts from the front with this many characters in all, at least one; all of them for None."""
    if characters is None:
        return list(waiting)
    sums = accumulate(each.characters for each in waiting)
    count = next((count for count, total in enumerate(sums, start=1) if total >= characters), len(waiting))
    return list(waiting[:count])
