"""Choose by class of dependency: a quota of samples that depend on far text, and a uniform draw of the others.

If the pool has fewer far samples than the model's use, a quota gains slope · KL(use ‖ pool) over a random choice. This
holds for learning curves that are linear in the logarithm of the number of samples. A ranking cannot give this gain:
its best samples are all far, so whole forms of response are missing. Where few samples are far, it fills the amount
with misranked ones. So the quota ends at the border of the class, and the draw gives the remaining amount.

A sample without a score is never chosen, as under every rule. A method gives none to those that must not be chosen,
such as a target set.
"""

# What it does: a quota of far samples by score, spread over clusters or lengths of responses, then a uniform draw of
# the others. `clean` is the draw without the quota. The draw is by a hash of the ids, so that one more sample in the
# pool changes at most one sample of a draw of the same number.
#
# What it costs: a sort and a hash per sample, no model. With `encoder` the clusters need embeddings of the samples.
#
# When another rule is better (docs/evidence/effect.md has the gains):
# - `clean` or method `random`, if the pool has about as much far text as the use. A quota then changes hardly
#   anything.
# - `top`, if only far recall counts. It teaches more far facts than `mix`, but can lose near ones and forms of
#   response.
# - `auto` takes `mix` or `clean` by the verdict of selection/forecast.py.
# - `tau` above 0 draws far samples by score. It gained nothing there: use it to vary a choice, not to improve one.

import math
from collections.abc import Mapping
from fractions import Fraction

import numpy as np
import polars as pl

from gateau_dagster.config.selection import DependencyClass, RuleConfig
from gateau_dagster.config.values import as_written
from gateau_dagster.errors import GateauError
from gateau_dagster.selection.clusters import with_clusters
from gateau_dagster.selection.evidence import CLASS_OF
from gateau_dagster.selection.statistics import uniform
from gateau_dagster.selection.token_budget import affordable, countable, largest_remainder, source_counts

LEAST_USE = 0.5
"""The far share of an unconfigured use if the pool shows less: as many far samples as others."""
_REST = "rest"


def mix(ranked: pl.DataFrame, rule: RuleConfig) -> pl.DataFrame:
    """Return samples by the shares of `use`, and a uniform draw of the samples that are not far.

    The amount B is `fraction` or `count` of samples, or `budget` in tokens; with `shares`, B of each source. A share p
    of `use` gives its class p·B. The far quota is filled in the order of `far_order`, which covers all clusters or
    lengths of responses. Other quotas and the draw follow `draw_order`, which covers them as well. A part ends with the
    last sample that fits. If a class has too few samples, the draw replaces them by samples that are not far. If the
    draw has too few, the remaining far samples replace them. Samples of an unknown dependency are not far. If `use`
    names only the class far, a larger amount therefore includes all samples of a smaller one.

    `ranked`: see rules.chosen_ids, sorted by rank, samples without a score last. `rule.use` names the shares.

    Raises:
        GateauError: the budget is too small for the first sample, or for the first far one; a source is short; or the
            samples cannot form the clusters.
    """
    assert isinstance(rule.use, dict)
    # A far share of zero keeps far samples out of the draw.
    # Exact fractions: 0.29 · 100 as floats is below 29, and quotas are rounded down first.
    shares: dict[DependencyClass, Fraction] = {
        name: as_written(share) for name, share in rule.use.items() if share or name == "far"
    }
    return _chosen(ranked, rule, shares)


def clean(ranked: pl.DataFrame, rule: RuleConfig) -> pl.DataFrame:
    """Return a uniform draw of as many samples as the amount allows: those that rank first by method `random`.

    Repeats, unpredictable samples and the surplus of documents are excluded before the draw. Closed-book samples stay:
    they teach forms of response that no other sample has, and half of the far samples are classed as closed-book or
    near.

    `ranked`, errors: see `mix`.
    """
    return _chosen(ranked, rule, {})


def with_shares_of_use(ranked: pl.DataFrame, rule: RuleConfig) -> RuleConfig:
    """Return the rule with `use` as shares of classes: those configured, else the far share that the samples show.

    The samples are those of the sources that `use` names, or all samples with a score. In the second case, the share is
    at least LEAST_USE. It is the share among samples of known dependency, without a correction: `dependency` classifies
    both the use and the choice, and misses samples in both.

    `ranked`: all samples, in any order, see rules.chosen_ids. `shown_classes` lists the errors.
    """
    if isinstance(rule.use, dict):
        return rule
    classes = shown_classes(ranked, rule)
    share = int((classes == "far").sum()) / max(1, classes.len())
    use: dict[DependencyClass, float] = {"far": share if rule.use_sources else max(share, LEAST_USE)}
    return rule.model_copy(update={"use": use})


def shown_classes(samples: pl.DataFrame, rule: RuleConfig) -> pl.Series:
    """Return the known classes of the samples of the sources that `use` names, or of all that have a score: str.

    `samples`: see rules.chosen_ids. Raises GateauError if `use` names sources, and none of their samples has a class.
    """
    shown = pl.col("source").is_in(rule.use_sources) if rule.use_sources else pl.col("score").is_not_null()
    classes = samples.filter(shown, pl.col("dependency").is_not_null())["dependency"].replace_strict(CLASS_OF)
    if rule.use_sources and classes.is_empty():
        raise GateauError(
            "selection.no_use",
            f"selection.use: no sample of the source {' or '.join(map(repr, rule.use_sources))} has a dependency, so "
            "their far share is not known. Read the reasons in the rejected tables, or give the share: use: {far: 0.5}",
        )
    return classes


def far_order(far: pl.DataFrame, rule: RuleConfig) -> pl.DataFrame:
    """Return far samples in the order in which they are chosen.

    Within a stratum they follow `by_score`. The i-th sample of a stratum of n enters at (i - 1/2) / n, and samples that
    enter together follow `by_score`. So each stratum has its proportional share of any first k samples, rounded
    (Webster's method). A score that is a mean over tokens favours short responses. Without strata, the quota would hold
    few others.

    `far`: see `mix`, sorted by rank, samples with a score; `stratum` as in `with_strata`.
    """
    ordered = by_score(far, rule).with_columns(position=pl.int_range(pl.len()))
    # No quota per stratum is computed: sorted by this number, every first k samples have the proportions. So a larger
    # amount extends a smaller choice.
    enters = (pl.int_range(pl.len()).over("stratum") + 0.5) / pl.len().over("stratum")
    return ordered.with_columns(enters=enters).sort("enters", "position").drop("enters", "position")


def by_score(far: pl.DataFrame, rule: RuleConfig) -> pl.DataFrame:
    """Return far samples by rank, or with `tau` in a random order, with probabilities that depend on the scores.

    With `tau` it is the descending order of score / (tau · SD) + G. SD is the standard deviation of the scores, and
    G = -log(-log(u)) with u = `uniform` is Gumbel noise. The first k are then a draw without replacement with
    probabilities proportional to exp(score / (tau · SD)) (Gumbel top-k; Kool et al. 2019, arXiv 1903.06059).

    `far`: see `far_order`.
    """
    if rule.tau == 0 or not far.height:
        return far
    scores = far["score"].to_numpy()
    spread = float(scores.std())
    drawn = np.array([max(uniform(sample_id, rule.seed), 2**-54) for sample_id in far["sample_id"]])
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        logits = scores / (rule.tau * spread) if spread > 0 else np.zeros(len(scores))
    if not np.isfinite(logits).all():  # so small a tau is the limit 0
        return far
    return _by(far, logits - np.log(-np.log(drawn)))


def with_strata(samples: pl.DataFrame, rule: RuleConfig) -> pl.DataFrame:
    """Return samples with `stratum` i64, the strata that the far quota must cover. Null is also a stratum.

    With `encoder` it is the cluster of their embedding. Without one it is the number of binary digits of their response
    tokens: the lengths of a stratum differ by less than a factor of two. This needs no model, and does not depend on
    other samples. Without a column `response_tokens` there is one stratum.

    Raises:
        GateauError: see clusters.with_clusters.
    """
    if rule.encoder is not None:
        clusters = with_clusters(samples, rule).rename({"cluster": "stratum"})
        return samples.join(clusters, on="sample_id", how="left", maintain_order="left")
    if "response_tokens" not in samples.columns:
        return samples.with_columns(stratum=pl.lit(0, pl.Int64))
    digits = [None if tokens is None else tokens.bit_length() for tokens in samples["response_tokens"]]
    return samples.with_columns(stratum=pl.Series(digits, dtype=pl.Int64))


def draw_order(samples: pl.DataFrame, seed: int) -> pl.DataFrame:
    """Return samples in the order of a uniform draw: that of method `random` with this seed."""
    return _by(samples, np.array([uniform(sample_id, seed) for sample_id in samples["sample_id"]]))


def _by(samples: pl.DataFrame, keys: np.ndarray) -> pl.DataFrame:
    order = pl.Series("key", keys, dtype=pl.Float64)
    return samples.with_columns(order).sort("key", "sample_id", descending=[True, False]).drop("key")


def drawable(ranked: pl.DataFrame, rule: RuleConfig) -> pl.DataFrame:
    """Return the samples that can be chosen, with `cost` i64: their tokens if the rule has a budget, else 1.

    `ranked`: see `mix`. Raises GateauError if there are none.
    """
    by_tokens = rule.budget is not None
    possible = ranked.filter(countable() if by_tokens else pl.col("score").is_not_null())
    if possible.is_empty():
        raise GateauError(
            "selection.no_scores",
            f"selection.rule {rule.rule}: no sample can be chosen. A sample must have a score, a dependency that is "
            "not left out, and a source that selection.shares names; with a budget also its number of tokens. See the "
            "reasons in the rejected tables, and change shares, drop or the rule",
        )
    return possible.with_columns(cost=pl.col("tokens").cast(pl.Int64) if by_tokens else pl.lit(1, pl.Int64))


def _chosen(ranked: pl.DataFrame, rule: RuleConfig, shares: Mapping[DependencyClass, Fraction]) -> pl.DataFrame:
    kind = pl.col("dependency").replace_strict(CLASS_OF, default=None, return_dtype=pl.String)
    of_sources = ranked if rule.shares is None else ranked.filter(pl.col("source").is_in([*rule.shares]))
    samples = drawable(of_sources, rule).with_columns(kind=kind)
    if "far" in shares:
        samples = with_strata(samples, rule)
    parts = [_of_part(part, amount, rule, shares) for part, amount in _by_source(ranked, samples, rule) if part.height]
    chosen = pl.concat(parts)
    if rule.budget is not None:
        _check_budget(samples, chosen, rule, shares)
    return ranked.filter(pl.col("sample_id").is_in(chosen["sample_id"].implode()))


def _by_source(ranked: pl.DataFrame, samples: pl.DataFrame, rule: RuleConfig) -> list[tuple[pl.DataFrame, int]]:
    """Return the parts from which the rule chooses separately, with their amounts: all samples, or each source."""
    amount = rule.chosen(samples.height) if rule.most_tokens is None else rule.most_tokens
    if rule.shares is None:
        return [(samples, amount)]
    counts = dict(ranked["source"].value_counts().iter_rows())
    costs = dict(samples.group_by("source").agg(pl.col("cost").sum()).iter_rows())
    amounts = source_counts(counts, dict.fromkeys(counts, 0) | costs, rule, count=amount)
    return [(samples.filter(source=source), share) for source, share in sorted(amounts.items())]


def _of_part(
    samples: pl.DataFrame, amount: int, rule: RuleConfig, shares: Mapping[DependencyClass, Fraction]
) -> pl.DataFrame:
    """Return the chosen samples, with the same columns."""
    orders = {
        name: far_order(members, rule) if name == "far" else draw_order(members, rule.seed)
        for name in shares
        for members in [samples.filter(kind=name)]
    }
    # The order of the three steps matters. Quotas are filled first, then the draw takes what they left. Far samples
    # fill up last, so that they take other places only when no other sample is left.
    quotas = largest_remainder({**shares, _REST: 1 - sum(shares.values(), Fraction(0))}, amount)
    taken = {name: affordable(members, quotas[name], "cost") for name, members in orders.items()}
    # Only a class that is used up gives its rest away. One that stops because its next sample is too long keeps it:
    # otherwise a budget would shift to other classes by the accident of lengths.
    left = sum(quotas[name] - _cost(part) for name, part in taken.items() if part.height == orders[name].height)
    of_classes = pl.concat([samples.clear(), *taken.values()])
    others = samples.filter(pl.col("kind").ne_missing("far")) if "far" in shares else samples
    others = draw_order(others.join(of_classes, on="sample_id", how="anti"), rule.seed)
    rest = affordable(others, quotas[_REST] + left, "cost")
    if "far" in shares and rest.height == others.height:
        more = quotas["far"] + quotas[_REST] + left - _cost(rest)
        taken["far"] = affordable(orders["far"], more, "cost")
    return pl.concat([samples.clear(), *taken.values(), rest])


def _cost(samples: pl.DataFrame) -> int:
    return int(samples["cost"].sum())


def _check_budget(
    samples: pl.DataFrame, chosen: pl.DataFrame, rule: RuleConfig, shares: Mapping[DependencyClass, Fraction]
) -> None:
    """Raise GateauError if the budget is too small for a sample, or its far share for a far one."""
    least = samples["cost"].min()
    if chosen.is_empty():
        raise GateauError(
            "selection.budget",
            f"selection.budget: {rule.most_tokens} {rule.budget_unit} are too few for the first sample of the draw, so "
            f"nothing would be chosen; the shortest sample has {least}: raise it",
        )
    if shares.get("far") and "far" in samples["kind"] and "far" not in chosen["kind"]:
        assert rule.most_tokens is not None
        quota = math.floor(rule.most_tokens * shares["far"])
        raise GateauError(
            "selection.budget",
            f"selection.budget: the far share of {rule.most_tokens} {rule.budget_unit}, about {quota}, is too small "
            f"for the first far sample, so none would be chosen: raise it, or set selection.use: {{far: 0}}",
        )
