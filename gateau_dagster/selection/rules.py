"""Choose samples from a ranking: by number, by tokens, by source, by class, or from every cluster.

Under each rule, `drop` leaves out samples of some dependencies. `duplicates` leaves out all but one of identical
samples, and `per_document` all but the best samples of a document.
"""

# Why limits take the score and leave the row: later steps still know how many samples the data has. No share shrinks
# with a limit. Repeats do leave, because a text that is there twice counts once.
#
# The order of the steps is part of the result. The amount is fixed first, as a number. Then `drop` acts, then
# `duplicates`, then `per_document`, and the rule chooses last. Repeats go before documents are counted: two copies must
# not fill a document's places.

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

import polars as pl

from gateau_dagster import tables
from gateau_dagster.config.selection import WITH_QUOTAS, Dependency, Rule, RuleConfig
from gateau_dagster.errors import GateauError, gateau_command
from gateau_dagster.readable import nearest_name
from gateau_dagster.selection.ccs import ccs
from gateau_dagster.selection.clusters import cluster_count, diverse
from gateau_dagster.selection.mix import clean, mix, with_shares_of_use
from gateau_dagster.selection.token_budget import check_sources, countable, per_source, per_source_tokens, token_budget

DROPPED = "selection.drop:"
BY_RULE = "selection.rule:"
"""The first words of the reason for a sample of a dropped dependency: `drop` names it, or the rule leaves it out."""


@dataclass(frozen=True, kw_only=True)
class LeftOut:
    """The samples that `selection.drop`, `selection.duplicates` and `selection.per_document` exclude from a choice.

    rows: tables.REJECTED, sorted by id, of all samples with a score that are not candidates. dropped: how many of them
    have a dropped dependency. repeats: how many have the texts of a candidate. by_document: whether documents are
    limited. passed_over: samples that documents exclude and that rank before the worst chosen sample. unfilled: samples
    that were requested but could not be chosen, because too few were left; 0 if tokens are requested.
    """

    rows: pl.DataFrame
    dropped: int
    repeats: int
    by_document: bool
    passed_over: int
    unfilled: int

    @property
    def beyond_the_best(self) -> int:
        """Return how many samples `selection.per_document` leaves out."""
        return self.rows.height - self.repeats - self.dropped


def without_dropped(ranked: pl.DataFrame, rule: RuleConfig) -> pl.DataFrame:
    """Return `ranked` without the scores of samples that the rule drops, which are then last.

    `ranked`: as for `with_best_of_documents`, with `dependency` str.
    """
    out = _excluded(ranked, rule)
    return _unscored(ranked, pl.col("dependency").is_in(out)) if out else ranked


def dropped_samples(ranked: pl.DataFrame, rule: RuleConfig) -> pl.DataFrame:
    """Return tables.REJECTED of the samples with a score that `without_dropped` excludes."""
    excluded = _excluded(ranked, rule)
    if not excluded:
        return pl.DataFrame(schema=tables.schema(tables.REJECTED))
    out = ranked.filter(pl.col("dependency").is_in(excluded), pl.col("score").is_not_null())
    setting = pl.when(pl.col("dependency").is_in(rule.drop)).then(pl.lit(DROPPED)).otherwise(pl.lit(BY_RULE))
    reason = pl.format("{} its dependency is {}", setting, "dependency")
    return out.select("sample_id", reason=reason).sort("sample_id").match_to_schema(tables.schema(tables.REJECTED))


def _excluded(ranked: pl.DataFrame, rule: RuleConfig) -> list[Dependency]:
    # Noise stays if no other sample has a score: a model that predicts no response cannot tell which samples are noise.
    if rule.left_out == rule.drop:
        return rule.drop
    others = ranked.filter(scored(), ~pl.col("dependency").is_in(rule.left_out).fill_null(False))
    return rule.left_out if others.height else rule.drop


def with_one_of_each_text(ranked: pl.DataFrame, rule: RuleConfig) -> pl.DataFrame:
    """Return `ranked` with one sample of each text: the best that the rule can choose, else the first one.

    Under `duplicates: keep` all stay. `ranked`: see chosen_ids, sorted by rank, samples without a score last.
    """
    if rule.duplicates == "keep":
        return ranked
    return ranked.filter(pl.col("sample_id") == _best_of_text(rule))


def repeats_of_texts(ranked: pl.DataFrame, rule: RuleConfig) -> pl.DataFrame:
    """Return tables.REJECTED of the samples with a score that `with_one_of_each_text` drops. `ranked`: see there."""
    if rule.duplicates == "keep":
        return pl.DataFrame(schema=tables.schema(tables.REJECTED))
    out = ranked.with_columns(best=_best_of_text(rule)).filter(
        pl.col("sample_id") != pl.col("best"), pl.col("score").is_not_null()
    )
    reason = pl.format("selection.duplicates: one: its texts are those of '{}', which is the one that counts", "best")
    return out.select("sample_id", reason=reason).sort("sample_id").match_to_schema(tables.schema(tables.REJECTED))


def countable_samples(samples: pl.DataFrame, rule: RuleConfig) -> tuple[Mapping[str, int], RuleConfig]:
    """Return the most samples of each source that can count for a rule, whatever the scores are, and the rule for them.

    Identical texts count once, or once in each of their sources. The rule's fraction, which is of all samples, becomes
    a number of those that are left. `samples`: `source` str and, unless `duplicates` is keep, `digest` str.
    """
    if rule.duplicates == "keep":
        return dict(samples["source"].value_counts().iter_rows()), rule
    free = samples.filter(~pl.col("source").is_in(rule.use_sources))
    if rule.budget is None and free.height:
        rule = rule.taking(count=min(rule.chosen(free.height), free["digest"].n_unique()))
    return dict(samples.unique(["source", "digest"])["source"].value_counts().iter_rows()), rule


def with_best_of_documents(ranked: pl.DataFrame, rule: RuleConfig) -> pl.DataFrame:
    """Return `ranked` with only the `rule.per_document` best of each document scored; the others lose their score.

    Samples without a score go to the end. They are never chosen, but count if a rule refers to the whole data, like a
    sample that no model could read. Which samples are left does not depend on quotas or on other choices. A sample that
    the rule cannot choose at any rank does not take another's place.

    `ranked`: see chosen_ids, sorted by rank, samples without a score last; with `document` str.
    """
    return _unscored(ranked, _follows_the_best(ranked, rule))


def beyond_the_best(ranked: pl.DataFrame, rule: RuleConfig) -> pl.DataFrame:
    """Return tables.REJECTED of the samples with a score that `with_best_of_documents` excludes. `ranked`: see
    there.
    """
    best = pl.col("sample_id").filter(_choosable(rule)).first().over("document").alias("best")
    out = ranked.with_columns(best).filter(_follows_the_best(ranked, rule), pl.col("score").is_not_null())
    samples = "sample ranks" if rule.per_document == 1 else "samples rank"
    reason = pl.format(
        "selection.per_document: {} {} better of its document, the best of them '{}'",
        rule.per_document,
        pl.lit(samples),
        "best",
    )
    return out.select("sample_id", reason=reason).sort("sample_id").match_to_schema(tables.schema(tables.REJECTED))


def most_by_source(samples: pl.DataFrame, most: int) -> Mapping[str, int]:
    """Return how many samples of each source the limit leaves at most, whatever the scores are.

    `samples`: `document` and `source`, both str. A document in several sources counts in each of them.
    """
    documents = samples.group_by("source", "document").agg(left=pl.len().clip(upper_bound=most))
    return dict(documents.group_by("source").agg(pl.col("left").sum()).iter_rows())


def most_of_all(samples: pl.DataFrame, most: int) -> int:
    """Return how many samples the limit leaves at most, whatever the scores are. `samples`: `document` str."""
    return int(samples["document"].value_counts()["count"].clip(upper_bound=most).sum())


def _unscored(ranked: pl.DataFrame, which: pl.Expr | pl.Series) -> pl.DataFrame:
    kept = pl.when(which).then(None).otherwise("score")
    return ranked.with_columns(score=kept).sort(pl.col("score").is_null(), maintain_order=True)


def _best_of_text(rule: RuleConfig) -> pl.Expr:
    # The best one that the rule can choose: a copy without a number of tokens must not stand for one that has it.
    ids = pl.col("sample_id")
    return pl.coalesce(ids.filter(_choosable(rule)).first().over("digest"), ids.first().over("digest"))


def _choosable(rule: RuleConfig) -> pl.Expr:
    possible = countable() if rule.budget is not None else pl.col("score").is_not_null()
    return possible if rule.shares is None else possible & pl.col("source").is_in([*rule.shares])


def _follows_the_best(ranked: pl.DataFrame, rule: RuleConfig) -> pl.Series:
    """Return whether the allowed number of samples of its document rank before a sample."""
    assert rule.per_document is not None and ranked["document"].null_count() == 0
    choosable = _choosable(rule).cast(pl.Int64)
    # Counted in rank order, and only over samples that the rule can choose: others do not take a place.
    before = choosable.cum_sum().over("document") - choosable
    return ranked.select(follows=before >= rule.per_document)["follows"]


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
    "mix": mix,
    "clean": clean,
    "ccs": ccs,
}


def chosen_ids(samples: pl.DataFrame, rule: RuleConfig) -> list[str]:
    """Return the ids of the samples that the rule chooses, best rank first.

    Args:
        samples: one row per sample of the data set, in any order: `sample_id` str; `score` f64, null if the method has
            none: such a sample is never chosen, but counts if a rule refers to the whole data; `rank` int, 1 is the
            best; `source` str; `tokens` int, of context and response, null if unknown; with `rule.encoder`, `embedding`
            list[f32], null if there is none; for `mix` without one, `response_tokens` int, if its quota is to cover
            lengths of responses; with `rule.per_document`, `document` str; with `rule.drop`, `mix` and `clean`,
            `dependency` str, null if unknown; unless `rule.duplicates` is keep, `digest` str. Equal ranks are in the
            order of the ids.
        rule: the rule and the amount; `auto` has to be decided first (selection.forecast). A fraction is of the samples
            with a score, including those that `drop`, `duplicates` and `per_document` exclude. These change which
            samples are chosen, and their number only if too few are left. Repeated texts count once if a rule refers to
            the whole data, as for the share of a source.

    Raises:
        GateauError: the data cannot satisfy the rule.
    """
    assert not samples["sample_id"].is_duplicated().any()
    assert not samples["score"].is_nan().any()
    assert samples.filter(scored())["rank"].null_count() == 0
    ranked = _ranked(samples, rule)
    if not ranked.filter(scored()).height:
        raise GateauError(
            "selection.no_scores",
            "no sample has a score, so none can be chosen. The rejected tables name the samples that a model "
            "cannot read; the method scores none of the others, for example because they are too short (see "
            f"`{gateau_command('validate')}`). Change selection.options, or the method",
        )
    if rule.rule in WITH_QUOTAS:
        rule = with_shares_of_use(samples, rule)
    if rule.budget is None:  # its fraction is of the samples before any of them is excluded
        rule = rule.taking(count=rule.chosen(ranked.filter(scored()).height))
    ranked = without_dropped(ranked, rule)
    if not ranked.filter(scored()).height:
        raise GateauError(
            "selection.no_scores",
            f"selection.drop: every sample with a score has one of the dependencies {', '.join(rule.drop)}, so "
            "none can be chosen. Name fewer dependencies.",
        )
    ranked = with_one_of_each_text(ranked, rule)
    if rule.per_document is not None:
        ranked = with_best_of_documents(ranked, rule)
    return _RULES[rule.rule](ranked, rule)["sample_id"].to_list()


def left_out(samples: pl.DataFrame, rule: RuleConfig, chosen: Collection[str]) -> LeftOut:
    """Return the samples that `rule` excluded from `samples` when `chosen` was made."""
    ranked = _ranked(samples, rule)
    wanted = 0 if rule.budget is not None else rule.chosen(ranked.filter(scored()).height)
    dropped, ranked = dropped_samples(ranked, rule), without_dropped(ranked, rule)
    repeats, candidates = repeats_of_texts(ranked, rule), with_one_of_each_text(ranked, rule)
    # The steps of `chosen_ids` again, in its order. They are repeated and not recorded, so that a choice made elsewhere
    # can be explained, too.
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


def _ranked(samples: pl.DataFrame, rule: RuleConfig) -> pl.DataFrame:
    candidates = samples.filter(~pl.col("source").is_in(rule.use_sources)) if rule.use_sources else samples
    return candidates.sort(~scored(), "rank", "sample_id", nulls_last=True)


def check_data(sources: Mapping[str, int], rule: RuleConfig, *, left: Mapping[str, int] | None = None) -> None:
    """Check before any model runs that a rule can work with this data, whatever the scores are.

    Args:
        sources: samples of each source.
        rule: the rule and the amount.
        left: how many of them `rule.per_document` leaves at most; None if the documents are not known yet.

    Raises:
        GateauError: a named source is absent or smaller than its share, there are more clusters than samples, or all
            samples show the use.
    """
    for source in rule.use_sources:
        if source not in sources:
            meant = nearest_name(source, sorted(sources))
            raise GateauError("selection.unknown_source", f"selection.use: the data has no source {source!r}; {meant}")
    sources = {source: count for source, count in sources.items() if source not in rule.use_sources}
    total = sum(sources.values())
    if rule.use_sources and not total:
        raise GateauError(
            "selection.no_use",
            "selection.use: all samples have one of its sources, so none is left to choose: name fewer sources, or add "
            "samples",
        )
    if rule.encoder is not None:
        cluster_count(total, rule.clusters)
    if rule.rule == "per_source" or rule.shares is not None:
        # How many tokens a source has is not known yet, so a budget shows only whether the sources exist.
        count = rule.chosen(total) if rule.budget is None else 0
        check_sources(sources, sources if left is None else left, rule, count=count)
