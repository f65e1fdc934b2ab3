"""Choose samples from a ranking: by number, by tokens, by source, or from every cluster.

Under each rule, `drop` leaves out samples of some dependencies. `duplicates` leaves out all but one of identical
samples, and `per_document` all but the best samples of a document.
"""

from collections.abc import Callable, Collection, Mapping

import polars as pl

from gateau_dagster.config.selection import Rule, RuleConfig
from gateau_dagster.errors import GateauError, gateau_command
from gateau_dagster.selection.clusters import cluster_count, diverse
from gateau_dagster.selection.per_document import (
    LeftOut,
    beyond_the_best,
    dropped_samples,
    repeats_of_texts,
    with_best_of_documents,
    with_one_of_each_text,
    without_dropped,
)
from gateau_dagster.selection.token_budget import check_sources, per_source, per_source_tokens, token_budget

# Raise it when a rule chooses other samples for the same scores.
CODE_VERSION = "2"

__all__ = ["check_data", "chosen_ids", "left_out", "top"]


def top(ranked: pl.DataFrame, rule: RuleConfig) -> pl.DataFrame:
    """Return the `fraction` or `count` of the samples that rank first."""
    return ranked.head(rule.chosen(ranked.filter(scored()).height))


def scored() -> pl.Expr:
    """Return whether a sample has a score, without which it cannot be chosen."""
    return pl.col("score").is_not_null()


_RULES: dict[Rule, Callable[[pl.DataFrame, RuleConfig], pl.DataFrame]] = {
    "top": top,
    "token_budget": token_budget,
    "per_source": per_source,
    "per_source_tokens": per_source_tokens,
    "diverse": diverse,
}


def chosen_ids(samples: pl.DataFrame, rule: RuleConfig) -> list[str]:
    """Return the ids of the samples that the rule chooses, best rank first.

    Args:
        samples: one row per sample of the data set, in any order: `sample_id` str; `score` f64, null if the method has
            none: such a sample is never chosen, but counts if a rule refers to the whole data; `rank` int, 1 is the
            best; `source` str; `tokens` int, of context and response, null if unknown; for `diverse`, `embedding`
            list[f32], null if there is none; with `rule.per_document`, `document` str; with `rule.drop`, `dependency`
            str, null if unknown; unless `rule.duplicates` is keep, `digest` str. Equal ranks are in the order of the
            ids.
        rule: the rule and the amount. A fraction is of the samples with a score, including those that `drop`,
            `duplicates` and `per_document` exclude. These change which samples are chosen, and their number only if too
            few are left. Repeated texts count once if a rule refers to the whole data, as for the share of a source.

    Raises:
        GateauError: the data cannot satisfy the rule.
    """
    assert not samples["sample_id"].is_duplicated().any()
    assert not samples["score"].is_nan().any()
    assert samples.filter(scored())["rank"].null_count() == 0
    ranked = _ranked(samples)
    if not ranked.filter(scored()).height:
        raise GateauError(
            "selection.no_scores",
            "no sample has a score, so none can be chosen. The rejected tables name the samples that a model "
            "cannot read; the method scores none of the others, for example because they are too short (see "
            f"`{gateau_command('validate')}`). Change selection.options, or the method",
        )
    rule, ranked = _counted(rule, ranked), without_dropped(ranked, rule)
    if not ranked.filter(scored()).height:
        raise GateauError(
            "selection.no_scores",
            f"selection.drop: every sample with a score has one of the dependencies {', '.join(rule.drop)}, so none "
            "can be chosen. Name fewer dependencies.",
        )
    ranked = with_one_of_each_text(ranked, rule)
    if rule.per_document is not None:
        ranked = with_best_of_documents(ranked, rule)
    return _RULES[rule.rule](ranked, rule)["sample_id"].to_list()


def left_out(samples: pl.DataFrame, rule: RuleConfig, chosen: Collection[str]) -> LeftOut:
    """Return the samples that `rule` excluded from `samples` when `chosen` was made."""
    ranked = _ranked(samples)
    wanted = 0 if rule.budget is not None else rule.chosen(ranked.filter(scored()).height)
    dropped, ranked = dropped_samples(ranked, rule), without_dropped(ranked, rule)
    repeats, candidates = repeats_of_texts(ranked, rule), with_one_of_each_text(ranked, rule)
    counts = {"dropped": dropped.height, "repeats": repeats.height}
    if rule.per_document is None:
        unfilled = max(0, wanted - candidates.filter(scored()).height)
        every = pl.concat([dropped, repeats]).sort("sample_id")
        return LeftOut(rows=every, **counts, by_document=False, passed_over=0, unfilled=unfilled)
    rows = beyond_the_best(candidates, rule)
    ids = candidates["sample_id"]
    places = ids.is_in(list(chosen)).arg_true()
    before = ids.head(places[-1] if places.len() else 0)
    passed = rows.filter(pl.col("sample_id").is_in(before.implode())).height
    every = pl.concat([rows, dropped, repeats]).sort("sample_id")
    unfilled = max(0, wanted - len(chosen))
    return LeftOut(rows=every, **counts, by_document=True, passed_over=passed, unfilled=unfilled)


def _ranked(samples: pl.DataFrame) -> pl.DataFrame:
    return samples.sort(~scored(), "rank", "sample_id", nulls_last=True)


def _counted(rule: RuleConfig, ranked: pl.DataFrame) -> RuleConfig:
    """Return the rule with its fraction as a number of samples, before any of them is excluded."""
    if rule.budget is not None:
        return rule
    return rule.taking(count=rule.chosen(ranked.filter(scored()).height))


def check_data(sources: Mapping[str, int], rule: RuleConfig, *, left: Mapping[str, int] | None = None) -> None:
    """Check before any model runs that a rule can work with this data, whatever the scores are.

    Args:
        sources: samples of each source.
        rule: the rule and the amount.
        left: how many of them `rule.per_document` leaves at most; None if the documents are not known yet.

    Raises:
        GateauError: a named source is absent or smaller than its share, or there are more clusters than samples.
    """
    total = sum(sources.values())
    if rule.rule == "diverse":
        cluster_count(total, rule.clusters)
    if rule.rule == "per_source":
        check_sources(sources, sources if left is None else left, rule, count=rule.chosen(total))
