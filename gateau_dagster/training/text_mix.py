"""Build the mix that a homologous model trains on: long and short texts by shares of tokens, with loss on every
token.
"""

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
from gateau_dagster.training.text_pieces import TextPiece, TextSource
from gateau_dagster.training.training_mix import rejected_table

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

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
            raise GateauError("training.no_text", _nothing(source))
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
        "labels": [_labels(piece.input_ids) for _, piece, _ in ordered],
        # No instruction: the whole text is the response.
        "block_tokens": [[0, len(piece.input_ids)] for _, piece, _ in ordered],
        "truncated_tokens": [piece.truncated_tokens for _, piece, _ in ordered],
    }
    return pl.DataFrame(columns, schema=schema(TRAINING_MIX))


def _labels(ids: np.ndarray) -> np.ndarray:
    """Return a label for every token but the first, which no token precedes."""
    labels = ids.copy()
    labels[0] = IGNORED
    return labels


def _tokens(pieces: Any) -> int:
    return sum(len(piece.input_ids) for piece in pieces)


def _nothing(source: TextSource) -> str:
    reasons = "; ".join(sorted({reject.reason for reject in source.rejected})[:3]) or "there are none"
    none = f"no text of {len(source.files)} files can be trained on ({reasons})"
    return f"{source.option}: {none}. Correct the path or text_field"
