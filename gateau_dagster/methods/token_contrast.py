"""Two methods that compare each response token's probability under theta_B and theta_A, from stored tables alone.

p_A and p_B are `token_probability` of theta_A (the short context) and theta_B (the long one), float32:

    information_gain = mean_t p_B(y_t) log(p_B(y_t) / p_A(y_t))
    key_tokens       = share of the tokens with log(p_B / p_A) > gain and log p_B > least

The first is LongFilter's (Deng et al. 2025, arXiv 2510.25804). Of the divergence of the two next-token distributions it
keeps the summand of the actual next token. The second counts the key tokens of LongPPL (scoring.key_tokens). Both
papers read plain text, and compare every token's last few thousand tokens with a longer context of the same model. Here
the pair reads the response, and the two models differ in what they may see.
"""

from abc import abstractmethod
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import polars as pl
from pydantic import Field

from gateau_dagster.config.base import Section
from gateau_dagster.methods.method import Method, Reads, Tables
from gateau_dagster.methods.token_pairs import LEAST_PROBABILITY, SHARED, check_same_version, same_sight, token_pairs
from gateau_dagster.scoring.response_perplexity import GAIN, LEAST, information_gain, key_tokens

SHORT, LONG = "perplexity/short", "perplexity/long"
_ROWS = 2**15  # rows per block

Values: TypeAlias = npt.NDArray[np.float64]


class KeyTokenOptions(Section):
    """The thresholds of a key token."""

    gain: float = Field(
        default=GAIN, description="A token counts if theta_B's log-probability exceeds theta_A's by more than this."
    )
    least: float = Field(
        default=LEAST, le=0, description="A token counts if theta_B's log-probability also exceeds this."
    )


class _Contrast(Method):
    """The mean of a figure over the response's tokens."""

    per_sample = True

    def reads(self) -> Reads:
        return {asset: ["sample_id", "digest", SHARED] for asset in (SHORT, LONG)}

    def score(self, tables: Tables) -> pl.DataFrame:
        check_same_version({asset: tables[asset] for asset in (SHORT, LONG)})
        pairs = token_pairs(tables[SHORT], tables[LONG])
        parts = [self._means(part) for part in pairs.iter_slices(_ROWS)]
        return pl.concat([pairs.select("sample_id", score=pl.lit(None, pl.Float64)).clear(), *parts])

    def _means(self, pairs: pl.DataFrame) -> pl.DataFrame:
        """Return `sample_id` and `score`; null for a response without tokens. `pairs`: rows of `token_pairs`."""
        lengths = pairs["long"].list.len().to_numpy()
        long, short = (
            -np.log(np.maximum(pairs[name].explode(empty_as_null=False).to_numpy(), LEAST_PROBABILITY))
            for name in ("long", "short")
        )
        of_sample = np.repeat(np.arange(pairs.height), lengths)
        sums = np.bincount(of_sample, weights=self.figure(long, short), minlength=pairs.height)
        score = pl.Series("score", sums / np.maximum(lengths, 1))
        return pairs.select("sample_id", score=pl.when(pl.Series(lengths > 0)).then(score))

    @abstractmethod
    def figure(self, long: Values, short: Values) -> npt.NDArray[Any]:
        """Return the figure of tokens with -log p_B and -log p_A, [n] each."""

    def warnings(self, accepted: pl.DataFrame) -> list[str]:
        return same_sight(self.config)


class InformationGain(_Contrast):
    """Score by the mean of p_B log(p_B / p_A)."""

    name = "information_gain"
    title = "The long model is surer of the response's tokens than the short one, most of all where it is sure."
    source = "LongFilter (Deng et al. 2025), the information gain of a token, over the response"

    def figure(self, long: Values, short: Values) -> Values:
        return information_gain(long, short)


class KeyTokens(_Contrast):
    """Score by the share of key tokens."""

    name = "key_tokens"
    title = "Many of the response's tokens are likely under the long model and far less so under the short one."
    source = "LongPPL (Fang et al. 2024), Eqs. 3-5: the share of key tokens"
    options: KeyTokenOptions

    def figure(self, long: Values, short: Values) -> npt.NDArray[np.bool_]:
        return key_tokens(long, short, gain=self.options.gain, least=self.options.least)
