"""Build the mix that a homologous model trains on: long and short texts by shares of tokens, with loss on every token.

A text is whole if it fits, otherwise cut into sequences one after the other. Texts and models are checked before any
model runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
import psutil

from gateau_dagster.config import Config
from gateau_dagster.config.made_models import homologous_options
from gateau_dagster.config.models import HomologousOptions
from gateau_dagster.data.sample import Reject, text_digest
from gateau_dagster.data.sources import SourceFile, content_signature, resolve_files
from gateau_dagster.data.text_corpus import CorpusText, TextFields, read_texts
from gateau_dagster.errors import GateauError, UnscorableSampleError
from gateau_dagster.models.known_model import known_model, own_window
from gateau_dagster.models.prompt import encode
from gateau_dagster.tables import TRAINING_MIX, schema
from gateau_dagster.training.batch_plan import mix_order
from gateau_dagster.training.encode import IGNORED
from gateau_dagster.training.training_mix import Origin, rejected_table

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


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
        UnscorableSampleError: the text has no tokens, or cannot be tokenised.
    """
    bos, eos = (
        (token,) if isinstance(token, int) else () for token in (tokenizer.bos_token_id, tokenizer.eos_token_id)
    )
    tokens = encode(tokenizer, text.text)
    body, room = tokens + eos, length - len(bos)
    # Make no sequence of only eos, and none of one token, which no token precedes.
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
    taken = next((number for number, total in enumerate(sums, start=1) if total >= characters), len(waiting))
    return list(waiting[:taken])


# Raise it when the same texts give another mix.
CODE_VERSION = "3"


@dataclass(frozen=True, kw_only=True)
class TextMix:
    """The result for `given` texts: `mix` (tables.TRAINING_MIX), `rejected` (tables.REJECTED), and `epochs` of each
    origin.

    Epochs are its tokens in the mix over those of its drawn texts, above 1 if texts are repeated.
    """

    mix: pl.DataFrame
    rejected: pl.DataFrame
    given: int
    epochs: dict[str, float]


def build_text_mix(
    long: TextSource, short: TextSource | None, tokenizer: PreTrainedTokenizerBase, *, options: HomologousOptions
) -> TextMix:
    """Draw, tokenise, cut and shuffle texts; the result depends only on the texts, `options` and the tokenizer.

    `options.long_share` of `options.tokens` are from long texts, exactly (except for a token that would be alone). The
    last text of each origin is cut, and if there are too few, they are repeated. The batching keeps documents apart.
    Without `options.tokens`, the origin with too few tokens for its share decides the number.

    Raises:
        GateauError: an origin has no text that can be trained on, or a file cannot be reached or changes meanwhile.
    """
    share = options.long_share if short is not None else 1.0
    shares: dict[str, float] = {"long": share, "short": 1.0 - share}
    drawn: dict[str, list[TextPiece]] = {}
    sources = [source for source in (long, short) if source is not None and shares[source.origin] > 0]
    for source in sources:
        limit = None if options.tokens is None else round(options.tokens * shares[source.origin])
        drawn[source.origin] = source.draw(tokenizer, length=options.length, tokens=limit, seed=options.seed)
        if not drawn[source.origin]:
            reasons = "; ".join(sorted({reject.reason for reject in source.rejected})[:3]) or "there are none"
            none = f"no text of {len(source.files)} files can be trained on ({reasons})"
            raise GateauError("training.no_text", f"{source.option}: {none}. Correct the path or text_field")
    held = {origin: _tokens(pieces) for origin, pieces in drawn.items()}
    total = options.tokens or min(tokens / shares[origin] for origin, tokens in held.items())
    filled = {origin: _filled(pieces, round(total * shares[origin])) for origin, pieces in drawn.items()}
    return TextMix(
        mix=_table(filled, options.seed),
        rejected=rejected_table([reject for source in sources for reject in source.rejected]),
        given=sum(source.given for source in sources),
        epochs={origin: _tokens(piece for piece, _ in filled[origin]) / tokens for origin, tokens in held.items()},
    )


def _filled(pieces: Sequence[TextPiece], tokens: int) -> list[tuple[TextPiece, int]]:
    """Return pieces with their round, repeated in order up to `tokens` tokens in all; the last one is cut."""
    found: list[tuple[TextPiece, int]] = []
    for turn in count():
        for piece in pieces:
            if tokens < 2:
                return found
            fitting = piece if len(piece.input_ids) <= tokens else piece.cut(tokens)
            found.append((fitting, turn))
            tokens -= len(fitting.input_ids)
    raise AssertionError("endless")


def _table(filled: dict[str, list[tuple[TextPiece, int]]], seed: int) -> pl.DataFrame:
    """Return the pieces shuffled by name and round, so that a repeated text gets another place."""
    rows = [(origin, piece, turn) for origin, pieces in filled.items() for piece, turn in pieces]
    places = [(f"{origin} text", f"{piece.name}/{turn}" if turn else piece.name) for origin, piece, turn in rows]
    ordered = [rows[at] for at in mix_order(places, seed)]
    columns: dict[str, Any] = {
        "position": range(len(ordered)),
        "sample_id": [piece.name for _, piece, _ in ordered],
        "origin": [origin for origin, _, _ in ordered],
        "source": [piece.source for _, piece, _ in ordered],
        "input_ids": [piece.input_ids for _, piece, _ in ordered],
        # Every token has a label but the first, which no token precedes.
        "labels": [np.append(np.int32(IGNORED), piece.input_ids[1:]) for _, piece, _ in ordered],
        # No instruction: the whole text is the response.
        "block_tokens": [[0, len(piece.input_ids)] for _, piece, _ in ordered],
        "truncated_tokens": [piece.truncated_tokens for _, piece, _ in ordered],
    }
    return pl.DataFrame(columns, schema=schema(TRAINING_MIX))


def _tokens(pieces: Any) -> int:
    return sum(len(piece.input_ids) for piece in pieces)


_TOKEN_BYTES = 8  # bytes of a token's id and label


def text_files(config: Config, name: str) -> dict[str, list[SourceFile]]:
    """Return the files of model `name` by key of its section: `texts`, and `short_texts` if configured.

    Raises:
        GateauError: a path matches nothing, or its storage cannot be reached; the message names the key.
    """
    options = homologous_options(config.models[name])
    found: dict[str, list[SourceFile]] = {}
    for key, path in (("texts", options.texts), ("short_texts", options.short_texts)):
        if path is None:
            continue
        try:
            found[key] = resolve_files(path, config.folder, plain_texts=True)
        except GateauError as error:
            raise error.reworded(f"models.{name}.homologous.{key}: {error}") from error
    return found


def text_signatures(config: Config, cache: Path) -> dict[str, str]:
    """Return for each homologous model a signature that changes with the names and contents of its texts' files.

    The file `cache` remembers contents, which are read again as the model's `verify` says. Raises as `text_files` does.
    """
    return {
        name: text_digest(
            [
                f"{key} {content_signature(files, cache, config.models[name].verify)}"
                for key, files in text_files(config, name).items()
            ]
        )
        for name in config.homologous_models
    }


def check_homologous(config: Config) -> None:
    """Check that each homologous model's base can be extended and its mix fits into memory, without loading the base.

    Raises:
        GateauError: the base has no rotary embedding, or already reads as far as the new model; or there are too many
            tokens.
    """
    for name in config.homologous_models:
        _check_memory(config, name)
        base = config.origin(name)
        known = known_model(config, base).config
        if known is None:
            continue  # not on this machine yet: the training checks it again
        text_config = known.get_text_config(decoder=True)
        if not getattr(text_config, "rope_parameters", None):
            raise GateauError(
                "models.no_rotary",
                f"models.{name}.path: models.{base} ({known.model_type}) has no rotary embedding to extend: start "
                "from a model such as Llama, Qwen or Mistral",
            )
        target = homologous_options(config.models[name]).extension
        window = own_window(config, base)
        if target.method != "theta" and window is not None and (target.target_length or 0) <= window:
            raise GateauError(
                "training.positions_reached",
                f"models.{name}.homologous: models.{base} reads {window} positions already, not fewer than the "
                f"{target.target_length} of this model: raise length, or set positions to method theta with a base",
            )


def _check_memory(config: Config, name: str) -> None:
    tokens, there = homologous_options(config.models[name]).tokens, psutil.virtual_memory().total
    if tokens is not None and tokens * _TOKEN_BYTES > there:
        raise GateauError(
            "machine.memory",
            f"models.{name}.homologous.tokens: {tokens:,} tokens need more than "
            f"{tokens * _TOKEN_BYTES / 2**30:,.0f} GiB, but this machine has {there / 2**30:,.0f} GiB: lower it, "
            "or make the model on a larger machine and name its folder",
        )
