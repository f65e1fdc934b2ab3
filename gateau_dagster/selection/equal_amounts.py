"""The same amount for every method: a fraction as a number of samples or of tokens of all candidates."""

import polars as pl

from gateau_dagster.config.selection import DEFAULT_FRACTION, SelectionConfig
from gateau_dagster.config.values import part_of
from gateau_dagster.config.variants import Equal


def equal_amount(rule: SelectionConfig, equal: Equal | None, samples: pl.DataFrame) -> SelectionConfig:
    """The rule with its fraction counted in what is to be equal; as it is where it counts so, or nothing is to be.

    Of the samples that a method scores a fraction is fewer where it rejects some, and more tokens where it likes long
    ones.

    Args:
        rule: see config.selection.
        equal: `variants.equal`.
        samples: all candidates, see rules.chosen_ids; with `tokens` where these are to be equal.
    """
    if rule.count is not None or rule.budget is not None:
        return rule
    if equal == "samples":
        return rule.taking(count=rule.chosen(samples.height))
    if equal == "tokens":
        total = int(samples["tokens"].sum() or 0)
        return rule.taking(budget=part_of(total, rule.fraction or DEFAULT_FRACTION))
    return rule
