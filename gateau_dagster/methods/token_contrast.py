"""Two methods that compare each response token's probability under theta_B and theta_A, from stored tables alone.

p_A and p_B are `token_probability` of theta_A (the short context) and theta_B (the long one), float32:

    information_gain = mean_t p_B(y_t) log(p_B(y_t) / p_A(y_t))
    key_tokens       = share of the tokens with log(p_B / p_A) > gain and log p_B > least

The first is LongFilter's (Deng et al. 2025, arXiv 2510.25804). Of the divergence of the two next-token distributions it
keeps the summand of the actual next token. The second counts the key tokens of LongPPL (scoring.key_tokens). Both
papers read plain text, and compare every token's last few thousand tokens with a longer context of the same model. Here
the pair reads the response, and the two models differ in what they may see.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt
import polars as pl
from pydantic import Field

from gateau_dagster.config.base import Section
from gateau_dagster.methods.method import Method, Reads, Tables
from gateau_dagster.methods.token_pairs import LEAST_PROBABILITY, SHARED, check_same_version, same_sight, token_pairs
from gateau_dagster.scoring.key_tokens import GAIN, LEAST, key_tokens

if TYPE_CHECKING:
    from gateau_dagster.config import Config

SHORT, LONG = "perplexity/short", "perplexity/long"
_ROWS = 2**15  # rows per block

Values: TypeAlias = npt.NDArray[np.float64]
OfTokens: TypeAlias = Callable[[Values, Values], npt.NDArray[Any]]


class KeyTokenOptions(Section):
    """The thresholds of a key token."""

    gain: float = Field(default=GAIN, description="Its log-probability is higher by more under theta_B.")
    least: float = Field(default=LEAST, le=0, description="And above this there.")


def information_gain(long: Values, short: Values) -> Values:
    """Return p_B log(p_B / p_A) of tokens with -log p_B and -log p_A, [n] each."""
    return np.exp(-long) * (short - long)


def mean_over_tokens(pairs: pl.DataFrame, of_tokens: OfTokens) -> pl.DataFrame:
    """Return `sample_id` and `score` f64: the mean of `of_tokens` over -log p_B and -log p_A, [tokens] each.

    pairs: the result of `token_pairs`. The score is null for a response without tokens.
    """
    parts = [_mean_over_tokens(part, of_tokens) for part in pairs.iter_slices(_ROWS)]
    return pl.concat([pairs.select("sample_id", score=pl.lit(None, pl.Float64)).clear(), *parts])


def _mean_over_tokens(pairs: pl.DataFrame, of_tokens: OfTokens) -> pl.DataFrame:
    lengths = pairs["long"].list.len().to_numpy()
    long, short = (
        -np.log(np.maximum(pairs[name].explode(empty_as_null=False).to_numpy(), LEAST_PROBABILITY))
        for name in ("long", "short")
    )
    of_sample = np.repeat(np.arange(pairs.height), lengths)
    sums = np.bincount(of_sample, weights=of_tokens(long, short), minlength=pairs.height)
    score = pl.Series("score", sums / np.maximum(lengths, 1))
    return pairs.select("sample_id", score=pl.when(pl.Series(lengths > 0)).then(score))


def _reads(config: Config, options: Section) -> Reads:
    del config, options
    return {asset: ["sample_id", "digest", SHARED] for asset in (SHORT, LONG)}


def _pairs(found: Tables) -> pl.DataFrame:
    check_same_version({asset: found[asset] for asset in (SHORT, LONG)})
    return token_pairs(found[SHORT], found[LONG])


def _score_gain(found: Tables, config: Config, options: Section) -> pl.DataFrame:
    del config, options
    return mean_over_tokens(_pairs(found), information_gain)


def _score_keys(found: Tables, config: Config, options: KeyTokenOptions) -> pl.DataFrame:
    del config

    def keys(long: Values, short: Values) -> npt.NDArray[np.bool_]:
        return key_tokens(long, short, gain=options.gain, least=options.least)

    return mean_over_tokens(_pairs(found), keys)


METHODS = (
    Method(
        name="information_gain",
        title="The long model is surer of the response's tokens than the short one, most of all where it is sure.",
        source="LongFilter (Deng et al. 2025), the information gain of a token, over the response",
        per_sample=True,
        reads=_reads,
        score=_score_gain,
        warnings=same_sight,
    ),
    Method(
        name="key_tokens",
        title="Many of the response's tokens are likely under the long model and far less so under the short one.",
        source="LongPPL (Fang et al. 2024), Eqs. 3-5: the share of key tokens",
        per_sample=True,
        options=KeyTokenOptions,
        reads=_reads,
        score=_score_keys,
        warnings=same_sight,
    ),
)
