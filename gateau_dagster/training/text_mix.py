"""What a homologous model is trained on: long and short texts by their shares of tokens, every token with loss."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from gateau_dagster.config.models import HomologousOptions
from gateau_dagster.errors import GateauError
from gateau_dagster.tables import TRAINING_MIX, schema
from gateau_dagster.training.batching import mix_order
from gateau_dagster.training.encode import IGNORED
from gateau_dagster.training.text_pieces import Piece, TextSource
from gateau_dagster.training.training_mix import rejected_table

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

# Raise it when the same texts come to another mix.
CODE_VERSION = "3"


@dataclass(frozen=True, kw_only=True)
class TextMix:
    """What came of `given` texts: `mix` (tables.TRAINING_MIX), `rejected` (tables.REJECTED), and `epochs` of each
    origin: its tokens in the mix over those that its drawn texts hold, above 1 where texts are repeated."""

    mix: pl.DataFrame
    rejected: pl.DataFrame
    given: int
    epochs: dict[str, float]


def build_text_mix(
    long: TextSource, short: TextSource | None, tokenizer: PreTrainedTokenizerBase, *, options: HomologousOptions
) -> TextMix:
    """Draws, tokenises, cuts and shuffles; a function of the texts, `options` and the tokenizer.

    `options.long_share` of `options.tokens` are of long texts, exactly (but for a token that would stand alone): the
    last text of each origin is cut, and where there are too few, they are repeated. Documents are kept apart by the
    batching. Without `options.tokens` the origin with too few tokens for its share decides how many there are.

    Raises:
        GateauError: an origin has no text that can be trained on, or a file cannot be reached or changes meanwhile.
    """
    share = options.long_share if short is not None else 1.0
    shares: dict[str, float] = {"long": share, "short": 1.0 - share}
    drawn: dict[str, list[Piece]] = {}
    sources = [source for source in (long, short) if source is not None and shares[source.origin] > 0]
    for source in sources:
        limit = None if options.tokens is None else round(options.tokens * shares[source.origin])
        drawn[source.origin] = source.draw(tokenizer, length=options.length, tokens=limit, seed=options.seed)
        if not drawn[source.origin]:
            raise GateauError(_nothing(source))
    held = {origin: _tokens(pieces) for origin, pieces in drawn.items()}
    total = options.tokens or min(tokens / shares[origin] for origin, tokens in held.items())
    filled = {origin: _filled(pieces, round(total * shares[origin])) for origin, pieces in drawn.items()}
    return TextMix(
        mix=_table(filled, options.seed),
        rejected=rejected_table([reject for source in sources for reject in source.rejected]),
        given=sum(source.given for source in sources),
        epochs={origin: _tokens(piece for piece, _ in filled[origin]) / tokens for origin, tokens in held.items()},
    )


def _filled(pieces: Sequence[Piece], tokens: int) -> list[tuple[Piece, int]]:
    """Pieces with their round, from the front and round after round, of `tokens` tokens in all; the last one is cut."""
    found: list[tuple[Piece, int]] = []
    for turn in count():
        for piece in pieces:
            if tokens < 2:
                return found
            fitting = piece if len(piece.input_ids) <= tokens else piece.cut(tokens)
            found.append((fitting, turn))
            tokens -= len(fitting.input_ids)
    raise AssertionError("endless")


def _table(filled: dict[str, list[tuple[Piece, int]]], seed: int) -> pl.DataFrame:
    """Shuffled by the names, so that a text that is there again stands in another place."""
    rows = [(origin, piece, turn) for origin, pieces in filled.items() for piece, turn in pieces]
    places = [(f"{origin} text", f"{piece.name}/{turn}" if turn else piece.name) for origin, piece, turn in rows]
    ordered = [rows[at] for at in mix_order(places, seed)]
    columns: dict[str, Any] = {
        "position": range(len(ordered)),
        "sample_id": [piece.name for _, piece, _ in ordered],
        "origin": [origin for origin, _, _ in ordered],
        "source": [piece.source for _, piece, _ in ordered],
        "input_ids": [piece.input_ids for _, piece, _ in ordered],
        "labels": [_labels(piece.input_ids) for _, piece, _ in ordered],
        # No instruction: the whole text is the response.
        "block_tokens": [[0, len(piece.input_ids)] for _, piece, _ in ordered],
        "truncated_tokens": [piece.truncated_tokens for _, piece, _ in ordered],
    }
    return pl.DataFrame(columns, schema=schema(TRAINING_MIX))


def _labels(ids: np.ndarray) -> np.ndarray:
    """Every token but the first, which none comes before."""
    labels = ids.copy()
    labels[0] = IGNORED
    return labels


def _tokens(pieces: Any) -> int:
    return sum(len(piece.input_ids) for piece in pieces)


def _nothing(source: TextSource) -> str:
    reasons = "; ".join(sorted({reject.reason for reject in source.rejected})[:3]) or "there are none"
    none = f"no text of {len(source.files)} files can be trained on ({reasons})"
    return f"{source.option}: {none}. Correct the path or text_field"
