"""Make methods choose the same amount: convert a fraction to a number of samples or tokens of all candidates."""

import polars as pl

from gateau_dagster.config.selection import DEFAULT_FRACTION, SelectionConfig
from gateau_dagster.config.values import part_of
from gateau_dagster.config.variants import Equal


def equal_amount(rule: SelectionConfig, equal: Equal | None, samples: pl.DataFrame) -> SelectionConfig:
    """Return the rule with its fraction as a number of samples or tokens; unchanged if it already counts, or `equal` is
    unset.

    A fraction of the samples that a method scores is fewer samples if it rejects some, and more tokens if it prefers
    long ones.

    Args:
        rule: see config.selection.
        equal: `variants.equal`.
        samples: all candidates, see rules.chosen_ids; with `tokens` if these must be equal.
    """
    if rule.count is not None or rule.budget is not None:
        return rule
    if equal == "samples":
        return rule.taking(count=rule.chosen(samples.height))
    if equal == "tokens":
        total = int(samples["tokens"].sum() or 0)
        return rule.taking(budget=part_of(total, rule.fraction or DEFAULT_FRACTION))
    return rule
