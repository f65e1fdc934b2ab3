"""Join the response tokens of two models, and score by the probability of each under theta_B and theta_A.

p_A and p_B are `token_probability` of theta_A (the short context) and theta_B (the long one), float32:

    information_gain = mean_t p_B(y_t) log(p_B(y_t) / p_A(y_t))
    key_tokens       = share of the tokens with log(p_B / p_A) > gain and log p_B > least

The first is LongFilter's (Deng et al. 2025, arXiv 2510.25804). Of the divergence of the two next-token distributions it
keeps the summand of the actual next token. The second counts the key tokens of LongPPL (scoring.key_tokens). Both
papers read plain text, and compare every token's last few thousand tokens with a longer context of the same model. Here
the pair reads the response, and the two models differ in what they may see.
"""

# What it costs: one pass of each model over the prompt, and no segments. It is the cheapest way to compare a pair. It
# does not show which text helped, so it yields no evidence and no classes for rule `mix`.

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import polars as pl
from pydantic import Field

from gateau_dagster.config import Config
from gateau_dagster.config.base import Section
from gateau_dagster.errors import GateauError, gateau_command
from gateau_dagster.methods.method import Method, Reads, Tables
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
        # One flat array of tokens per block: a list per sample would be an object of Python for each.
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


SHARED = "token_probability"
LEAST_PROBABILITY = 2.0**-149
"""The smallest float32 above 0, which replaces a probability that is rounded to 0."""


def token_pairs(short: pl.DataFrame, long: pl.DataFrame) -> pl.DataFrame:
    """Return `sample_id`, `short` and `long`: the lists of `token_probability` of samples in both tables, as float64.

    Raises GateauError if the two models count different response tokens, which cannot be compared.
    """
    probabilities = pl.col(SHARED).cast(pl.List(pl.Float64))
    tables = [
        table.select("sample_id", probabilities.alias(name)) for name, table in {"short": short, "long": long}.items()
    ]
    joined = tables[0].join(tables[1], on="sample_id")
    uneven = joined.filter(pl.col("short").list.len() != pl.col("long").list.len())["sample_id"].sort()
    if uneven.len():
        raise GateauError(
            "models.not_homologous",
            f"models.short and models.long tokenise {uneven.len()} responses differently, {uneven[0]}'s among "
            "them: take two models of one family, since they are compared token by token",
        )
    return joined


def check_same_version(found: Mapping[str, pl.DataFrame]) -> None:
    """Raise GateauError if the tables (`sample_id`, `digest`) come from different versions of a sample."""
    first, *others = (table.select("sample_id", "digest") for table in found.values())
    for other in others:
        both = first.join(other, on="sample_id", suffix="_other")
        differing = both.filter(pl.col("digest") != pl.col("digest_other"))["sample_id"].sort()
        if differing.len():
            raise GateauError(
                "storage.out_of_date",
                f"{', '.join(found)} scored different versions of {differing.len()} samples, {differing[0]} among "
                f"them: update them with `{gateau_command('run')}`",
            )


def same_sight(config: Config) -> list[str]:
    """Warn if theta_A sees as much as theta_B, for methods that compare the pair's probabilities (`Method.warnings`).

    docs/evidence/real_text.md reports the cost.
    """
    from gateau_dagster.models.model_facts import short_window

    window, longest = short_window(config), config.scoring.max_length
    full = config.models["short"].context == "full"
    if not full and (window is None or window < longest):
        return []
    why = "context: full" if full else f"window: {window}, scoring.max_length: {longest}"
    return [
        f"models.short sees as much of a prompt as models.long ({why}), so what far text adds hardly tells them apart. "
        "Set `context: window` and `window`: the tokens at the prompt's end that are to count as near, at most half of "
        "a usual context"
    ]
