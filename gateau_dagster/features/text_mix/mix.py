"""Build the mix that trains a homologous model: long and short texts by shares of tokens, with loss on every token.

A text that fits stays whole; another one is cut into consecutive sequences. Texts and models are checked before any
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
from gateau_dagster.models.model_facts import facts_of, own_window
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
    """A sequence: `input_ids` int32 [n], n >= 2. truncated_tokens: the number of tokens that `cut` removed."""

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

    Each sequence begins with bos, as every prompt does, because the model reads it separately. eos follows the end of
    the text if the sequence has room. A tokenizer may lack either token.

    Raises:
        UnscorableSampleError: the text has no tokens, or the tokenizer fails on it.
    """
    bos, eos = (
        (token,) if isinstance(token, int) else () for token in (tokenizer.bos_token_id, tokenizer.eos_token_id)
    )
    tokens = encode(tokenizer, text.text)
    body, room = tokens + eos, length - len(bos)
    # A sequence of eos only, or of one token, has nothing to predict.
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
    """Reader of the texts of one origin, which also draws them at random and tokenises them.

    join_by: the field of a record by whose value texts are joined into one, in the order of the files. least_tokens:
    the minimum length of a text; shorter texts are rejected. rejected: the rejects, filled while texts are read. given:
    the number of texts, including rejected ones, once they are drawn.
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
        """Return pieces of texts in random order, of at least `tokens` tokens in all if the texts suffice (None: all).

        A hash of seed and name orders the texts, so an additional text does not change the order of the others. The
        files are read once to list the texts, and again for the drawn ones. Few more texts are tokenised than needed.

        Raises GateauError if a text has changed when it is read again.
        """
        parts: dict[str, list[_Known]] = {}
        for text in self:
            place = _Known(name=_whole(text), places=((text.file, text.record),), characters=len(text.text))
            parts.setdefault(place.name, []).append(place)
        known = [_Known.joined(each) for each in parts.values()]
        self.given = len(known) + len(self.rejected)
        # Until they are drawn, only names, places and lengths of the texts are in memory.
        waiting = [known[at] for at in mix_order([(f"text/{self.origin}", each.name) for each in known], seed)]
        found: list[TextPiece] = []
        drawn = characters = 0
        while waiting and (tokens is None or drawn < tokens):
            taken = len(waiting)
            if tokens is not None:
                missing = (characters / drawn if drawn else _CHARACTERS_A_TOKEN) * (tokens - drawn)
                sums = accumulate(each.characters for each in waiting)
                taken = next((number for number, total in enumerate(sums, start=1) if total >= missing), taken)
            part, waiting = waiting[:taken], waiting[taken:]
            tokenised = self._tokenised(part, tokenizer, length)
            found += [piece for each in part for piece in tokenised.get(each.name, [])]
            drawn = sum(len(piece.input_ids) for piece in found)
            characters += sum(each.characters for each in part)
        return found

    def __iter__(self) -> Iterator[CorpusText]:
        """Yield all texts in the order of the files, and clear the rejects of an earlier reading first."""
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
        """Return the pieces of these texts by name; an unusable text is rejected and has no pieces."""
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
        """Return the configuration key that names the files."""
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
        """Return one entry for all parts of a text."""
        between = len(_BETWEEN) * (len(parts) - 1)
        places = tuple(place for each in parts for place in each.places)
        return cls(name=parts[0].name, places=places, characters=sum(each.characters for each in parts) + between)


def _whole(text: CorpusText) -> str:
    return text.whole or text.name


# Raise it when the same texts give another mix.
CODE_VERSION = "3"


@dataclass(frozen=True, kw_only=True)
class TextMix:
    """The mix of `given` texts: `mix` (tables.TRAINING_MIX), `rejected` (tables.REJECTED), and `epochs` by origin.

    The epochs of an origin are its tokens in the mix divided by those of its drawn texts; above 1 if texts are
    repeated.
    """

    mix: pl.DataFrame
    rejected: pl.DataFrame
    given: int
    epochs: dict[str, float]


def build_text_mix(
    long: TextSource, short: TextSource | None, tokenizer: PreTrainedTokenizerBase, *, options: HomologousOptions
) -> TextMix:
    """Draw, tokenise, cut and shuffle texts; the result depends only on the texts, `options` and the tokenizer.

    Exactly `options.long_share` of `options.tokens` are from long texts, except where that would leave a sequence of
    one token. The last text of each origin is cut, and texts repeat if an origin has too few tokens. The batches keep
    documents separate. Without `options.tokens`, the origin with too few tokens for its share decides the number.

    Raises:
        GateauError: an origin has no usable text, or a file is unreachable or changes during the reading.
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
    """Return pieces with the number of their repetition, in order, up to `tokens` tokens; the last piece is cut."""
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
    """Return the pieces shuffled by name and repetition, so that a repeated text gets another place."""
    rows = [(origin, piece, turn) for origin, pieces in filled.items() for piece, turn in pieces]
    places = [(f"{origin} text", f"{piece.name}/{turn}" if turn else piece.name) for origin, piece, turn in rows]
    ordered = [rows[at] for at in mix_order(places, seed)]
    columns: dict[str, Any] = {
        "position": range(len(ordered)),
        "sample_id": [piece.name for _, piece, _ in ordered],
        "origin": [origin for origin, _, _ in ordered],
        "source": [piece.source for _, piece, _ in ordered],
        "input_ids": [piece.input_ids for _, piece, _ in ordered],
        # Every token has a label except the first, which no token precedes.
        "labels": [np.append(np.int32(IGNORED), piece.input_ids[1:]) for _, piece, _ in ordered],
        # No instruction: the whole text is the response.
        "block_tokens": [[0, len(piece.input_ids)] for _, piece, _ in ordered],
        "truncated_tokens": [piece.truncated_tokens for _, piece, _ in ordered],
    }
    return pl.DataFrame(columns, schema=schema(TRAINING_MIX))


def _tokens(pieces: Any) -> int:
    return sum(len(piece.input_ids) for piece in pieces)


_TOKEN_BYTES = 8  # bytes of a token's id and label


def text_key(model: str) -> str:
    """Return the key of the texts that a homologous model is trained on."""
    return f"input/{model}_texts"


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

    The file `cache` stores digests of contents; the model's `verify` decides when a file is read again. The errors are
    those of `text_files`.
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
        GateauError: the base has no rotary embedding, the base already reads as many positions as the new model, or the
            mix has too many tokens.
    """
    for name in config.homologous_models:
        _check_memory(config, name)
        base = config.origin(name)
        known = facts_of(config, base).config
        if known is None:
            continue  # not on this machine yet: the training run repeats the check
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
