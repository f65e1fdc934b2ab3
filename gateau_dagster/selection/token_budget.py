"""Choose as many samples as a number of tokens allows, best first."""

from collections.abc import Iterable

import polars as pl

from gateau_dagster.config.selection import RuleConfig
from gateau_dagster.data.text_corpus import ScoredText
from gateau_dagster.errors import GateauError
from gateau_dagster.selection.per_source import limit_hint

_RANKED = pl.Schema({"sample_id": pl.String, "source": pl.String, "score": pl.Float64, "tokens": pl.Int64})


def token_budget(ranked: pl.DataFrame, rule: RuleConfig) -> pl.DataFrame:
    """Return the best samples that have at most `rule.budget` tokens together.

    Samples are taken by rank until the next one would exceed the budget. That one is left out and ends the choice. No
    worse sample that still fits replaces it, so every chosen sample ranks before every other. A sample with unknown
    tokens is skipped: the model that counts them rejects it.

    `ranked`: see rules.chosen_ids, sorted by rank, samples without a score last. Raises GateauError if the first sample
    alone exceeds the budget.
    """
    return _within(ranked.filter(countable()), rule)


def countable() -> pl.Expr:
    """Return whether a sample can be chosen by its tokens: it has a score, and a model that reads it counted them."""
    return pl.col("score").is_not_null() & pl.col("tokens").is_not_null()


def per_source_tokens(ranked: pl.DataFrame, rule: RuleConfig) -> pl.DataFrame:
    """Return the same percentage of every source, raised until `rule.budget` tokens are reached (LADM, by domain).

    The i-th best of a source with n samples enters at i/n; samples of one percentage enter by rank. The sample that
    would exceed the budget is left out and ends the choice, as in `token_budget`. n includes samples without a score or
    a number of tokens. A source whose other samples are used up before the budget is reached is an error; with
    `short_source: share` the others continue without it. A budget that all samples fit into takes them all.

    `ranked`: see `token_budget`. Raises GateauError as described.
    """
    entering = by_percentage(ranked)
    found = _within(entering.filter(countable()), rule)
    used_up = entering.filter(~countable(), pl.col("place") <= found["place"].max())
    everything = found.height == ranked.filter(countable()).height
    if used_up.height and not everything and rule.short_source == "error":
        _refuse_used_up(ranked, used_up["source"].unique().sort()[0], rule)
    return found.drop("place").sort("rank", "sample_id")


def by_percentage(ranked: pl.DataFrame) -> pl.DataFrame:
    """Return `ranked` in the order in which samples enter, with `place`: i/n for the i-th best of a source with n
    samples.

    Samples that are not countable are the last of their source. `ranked`: see `token_budget`.
    """
    last = ranked.sort(~countable(), "rank", "sample_id", nulls_last=True)
    return last.with_columns(
        # Equal quotients of two whole numbers are the same float64, so that ties are exact.
        place=pl.int_range(1, pl.len() + 1).over("source") / pl.len().over("source"),
    ).sort("place", "rank", "sample_id", maintain_order=True, nulls_last=True)


def affordable(samples: pl.DataFrame, budget: int) -> pl.DataFrame:
    """Return the first samples that have at most `budget` tokens together."""
    return samples.filter(pl.col("tokens").cast(pl.Int64).cum_sum() <= budget)


def _within(samples: pl.DataFrame, rule: RuleConfig) -> pl.DataFrame:
    """Return the first samples with at most `rule.budget` tokens together; raise GateauError if there are none."""
    assert rule.budget is not None
    if not samples.height:
        raise GateauError(
            "selection.no_scores",
            f"selection.rule {rule.rule}: no sample has both a score and a number of tokens: read the reasons in "
            "the rejected tables",
        )
    found = affordable(samples, rule.budget)
    if not found.height:
        raise GateauError(
            "selection.budget",
            f"selection.budget: {rule.budget} tokens are fewer than the {samples['tokens'][0]} of the first "
            "sample, so nothing would be chosen: raise it",
        )
    return found


def _refuse_used_up(ranked: pl.DataFrame, source: str, rule: RuleConfig) -> None:
    mine = ranked.filter(pl.col("source") == source)
    which = "scored samples" if rule.per_document is None else "samples that can be chosen"
    raise GateauError(
        "selection.too_few",
        f"selection.rule per_source_tokens: source {source!r} has {mine.filter(countable()).height} {which} "
        f"of {mine.height}, fewer than its percentage needs. Lower selection.budget, find out why samples "
        f"were rejected, or set selection.short_source: share{limit_hint(rule)}",
    )


def choose_by_domain(texts: Iterable[ScoredText], token_budget: int) -> set[str]:
    """Return the names of texts chosen from every domain's best ones, as large a share of each as the budget allows.

    This is LADM's selection (section 4.3), by the steps of selection.token_budget.per_source_tokens. The share grows in
    all domains together, which keeps their proportions, until the next text's tokens would exceed `token_budget`. The
    proportions are those of the scored texts: the paper's data set holds long texts only, and a text without a score is
    too short for it. Equal shares are ordered by score, equal scores by name. Return an empty set if the first text
    alone exceeds the budget.
    """
    rows = [(text.name, text.domain, text.score, text.tokens) for text in texts if text.score is not None]
    frame = pl.DataFrame(rows, schema=_RANKED, orient="row").sort("score", "sample_id", descending=[True, False])
    ranked = frame.with_row_index("rank", offset=1)
    return {*affordable(by_percentage(ranked), token_budget)["sample_id"]}
