"""Choose evenly over the range of scores: coverage-centric selection, for methods that know no classes.

Zheng et al. 2023 (arXiv 2210.15809) found that the best samples alone train a worse model than random ones, because
whole regions of the data are missing. Their rule leaves out the worst samples and covers the range of the others.
"""

import numpy as np
import polars as pl

from gateau_dagster.config.selection import RuleConfig
from gateau_dagster.errors import GateauError
from gateau_dagster.selection.mix import draw_order, drawable
from gateau_dagster.selection.token_budget import affordable

STRATA = 50
"""Equal parts of the range of scores, as in the authors' program."""
WORST = 3
"""The rule leaves out 1 / WORST of the samples beyond the amount, as the worst. If a tenth of the data is chosen, this
is 30 % of the data, as in the paper. The authors also leave out less when they choose more."""


def ccs(ranked: pl.DataFrame, rule: RuleConfig) -> pl.DataFrame:
    """Return samples of all STRATA of the score's range, as equally many of each as possible.

    First the worst samples are left out: a third (WORST) of those beyond the amount. The strata are filled from the
    smallest to the largest. Each gives, by a uniform draw, an equal part of the remaining amount, rounded down, or all
    its samples if they are fewer. With `budget` the amount and the sizes of strata are in tokens, and the part of a
    stratum ends with the last sample that fits.

    `ranked`: see rules.chosen_ids, sorted by rank, samples without a score last.

    Raises:
        GateauError: no sample can be chosen, or the budget is too small for any.
    """
    samples = drawable(ranked, rule)
    left = rule.chosen(samples.height) if rule.most_tokens is None else rule.most_tokens
    spare = max(0, int(samples["cost"].sum()) - left)
    kept = samples.filter(pl.col("cost").cum_sum(reverse=True) > spare // WORST)
    parts = []
    scores = kept["score"].to_numpy()
    least, width = scores.min(), np.ptp(scores) / STRATA
    numbers = np.floor((scores - least) / width) if width > 0 else np.zeros(len(scores))
    # Stratum 0 has the worst scores; the best score is in the last one.
    stratum = pl.Series(np.minimum(numbers, STRATA - 1).astype(np.int64))
    strata = draw_order(kept.with_columns(stratum=stratum), rule.seed).partition_by("stratum", maintain_order=True)
    ordered = sorted(strata, key=lambda part: (part["cost"].sum(), part["stratum"][0]))
    for filled, part in enumerate(ordered):
        parts.append(affordable(part, left // (len(ordered) - filled), "cost"))
        left -= int(parts[-1]["cost"].sum())
    chosen = pl.concat(parts)
    if chosen.is_empty():
        raise GateauError(
            "selection.budget",
            f"selection.budget: {rule.most_tokens} {rule.budget_unit} are too few for any part of the scores, so "
            f"nothing would be chosen; the shortest sample has {samples['cost'].min()}: raise it",
        )
    return ranked.filter(pl.col("sample_id").is_in(chosen["sample_id"].implode()))
