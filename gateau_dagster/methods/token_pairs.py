"""Join the response tokens of two models, token by token: the columns of their perplexity tables side by side."""

from collections.abc import Mapping

import polars as pl

from gateau_dagster.config import Config
from gateau_dagster.errors import GateauError, gateau_command

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
    from gateau_dagster.models.known_model import short_window

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
