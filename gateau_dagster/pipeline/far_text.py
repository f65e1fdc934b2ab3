"""Whether the samples reach beyond what theta_A is shown: of those that do not, nothing is far."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import polars as pl

from gateau_dagster.models.known_model import known_tokenizer, short_window
from gateau_dagster.readable import percentage

if TYPE_CHECKING:
    from gateau_dagster.config import Config
    from gateau_dagster.data.sample import Sample

_MOST = 8  # characters a token has in no language, on average
_LOOKED_AT = 20_000  # characters of a context


def without_far_text(config: Config, accepted: pl.DataFrame, samples: Callable[[], Sequence[Sample]]) -> list[str]:
    """A sentence where more than half of the samples fit into theta_A's window, by their characters.

    `accepted`: the index of the usable samples. `samples`: some of them, asked for where their tokens matter.
    """
    window = short_window(config)
    if window is None or not accepted.height:
        return []
    middle = float(accepted["characters"].median() or 0)  # pyright: ignore[reportArgumentType]
    rate = _characters_a_token(config, samples()) if middle <= _MOST * window else None
    if rate is None or middle > rate * window:
        return []
    share = accepted.filter(pl.col("characters") <= rate * window).height / accepted.height
    return [
        f"models.short sees {window:,} tokens at a prompt's end, which about {percentage(round(share, 2))} of the "
        "samples do not exceed, by their characters: nothing in them is far, and they come last. Set "
        f"models.short.window to at most half of a usual sample: half of them have no more than about "
        f"{middle / rate:,.0f} tokens"
    ]


def _characters_a_token(config: Config, samples: Sequence[Sample]) -> float | None:
    """Of these contexts and theta_A's tokenizer; None where it is not on this machine, or nothing is to be read."""
    tokenizer = known_tokenizer(config, "short")
    texts = [sample.context[:_LOOKED_AT] for sample in samples if sample.context]
    if tokenizer is None or not texts:
        return None
    tokens = sum(map(len, tokenizer(texts, add_special_tokens=False, verbose=False)["input_ids"]))
    return sum(map(len, texts)) / max(1, tokens)
