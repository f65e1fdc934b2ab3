"""Decide by the forecast whether a choice follows quotas of classes, or is a clean random one."""

import polars as pl

from gateau_dagster.config.selection import RuleConfig
from gateau_dagster.selection.forecast import Forecast, forecast
from gateau_dagster.selection.rules import chosen_ids


def decided(samples: pl.DataFrame, rule: RuleConfig, sums: pl.DataFrame) -> tuple[RuleConfig, Forecast]:
    """Return the rule that `rule: auto` takes, and the forecast for `mix`.

    It is `mix` if the forecast's verdict on it is `pays`. Else it is `clean`: a random choice without what is proven
    useless is then expected to do as well, and it leaves out no form of response.

    Args:
        samples: as for rules.chosen_ids with rule `mix`, with `response_tokens`.
        rule: the rule with its amount.
        sums: from forecast.token_sums.

    Raises:
        GateauError: the data cannot satisfy `mix`.
    """
    mix = rule.under("mix")
    found = forecast(
        samples.filter(pl.col("response_tokens").is_not_null()), mix, sums, chosen=chosen_ids(samples, mix)
    )
    return (mix if found.verdict == "pays" else rule.under("clean")), found
