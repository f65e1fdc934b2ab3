"""Choose as many samples as an amount allows, best first: over all, by source, or as much as another choice has."""

from collections.abc import Iterable, Mapping
from fractions import Fraction

import polars as pl

from gateau_dagster.config.selection import DEFAULT_FRACTION, RuleConfig, SelectionConfig
from gateau_dagster.config.values import part_of
from gateau_dagster.config.variants import Equal
from gateau_dagster.data.text_corpus import ScoredText
from gateau_dagster.errors import GateauError
from gateau_dagster.readable import nearest_name


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
    if rule.use_sources:
        samples = samples.filter(~pl.col("source").is_in(rule.use_sources))
    if equal == "samples":
        return rule.taking(count=rule.chosen(samples.height))
    if equal == "tokens":
        total = int(samples["tokens"].sum() or 0)
        return rule.taking(budget=part_of(total, rule.fraction or DEFAULT_FRACTION))
    return rule


def per_source(ranked: pl.DataFrame, rule: RuleConfig) -> pl.DataFrame:
    """Return the best of every source, as many as its share of `fraction` or `count`.

    Shares are `rule.shares`, or by default the sources' numbers of samples in the data, scored or not. A source with
    fewer scored samples than its share is an error. With `short_source: share` it gives what it has, and the rest goes
    to the others in proportion.

    `ranked`: see rules.chosen_ids, sorted by rank, samples without a score last. Raises GateauError as described.
    """
    scored = ranked.filter(pl.col("score").is_not_null())
    counts = dict(ranked["source"].value_counts().iter_rows())
    available = dict.fromkeys(counts, 0) | dict(scored["source"].value_counts().iter_rows())
    taken = source_counts(counts, available, rule, count=rule.chosen(scored.height))
    limit = pl.col("source").replace_strict(taken, default=0, return_dtype=pl.Int64)
    return scored.filter(pl.int_range(pl.len()).over("source") < limit)


def limit_hint(rule: RuleConfig) -> str:
    """Return the addition to an error about too few samples: the other settings that exclude some."""
    once = "" if rule.duplicates == "keep" else ". Samples with the same texts count once (selection.duplicates: one)"
    if rule.per_document is None:
        return once
    return f". selection.per_document: {rule.per_document} leaves samples out, too: raise it, or remove it{once}"


def check_sources(counts: Mapping[str, int], left: Mapping[str, int], rule: RuleConfig, *, count: int) -> None:
    """Raise GateauError if the sources are too small whatever the scores are.

    `counts`: samples of each source. `left`: how many of them a limit of samples per document leaves.
    """
    source_counts(counts, left, rule, count=count)


def source_counts(
    counts: Mapping[str, int], available: Mapping[str, int], rule: RuleConfig, *, count: int
) -> dict[str, int]:
    """Return how many samples each source gives, or how many tokens if the rule has a budget.

    Args:
        counts: samples of each source.
        available: how many of them, or of their tokens if the rule has a budget, can be chosen: they have a score, and
            no limit excludes them.
        rule: its shares, and what a short source does.
        count: samples or tokens of all sources together.

    Raises:
        GateauError: shares name an unknown source, or a source is short.
    """
    # Fractions, because shares such as 0.1 have no exact float, and remainders decide who gets the last sample.
    weights = {source: Fraction(weight) for source, weight in (rule.shares or counts).items()}
    unknown = sorted(set(weights) - set(counts))
    if unknown:
        meant = nearest_name(unknown[0], sorted(counts))
        raise GateauError(
            "selection.unknown_source", f"selection.shares: the data has no source {unknown[0]!r}; {meant}"
        )
    taken: dict[str, int] = {}
    while True:
        rest = {source: weight for source, weight in weights.items() if source not in taken}
        given = largest_remainder(rest, count - sum(taken.values()))
        # A short source gives all that it has, and the rest is split anew. That may make another one short, hence the
        # loop. It ends, since each round settles one source at least.
        short = sorted(source for source, number in given.items() if number > available[source])
        if not short:
            return taken | given
        if rule.short_source == "error":
            found = _short(short[0], given[short[0]], available[short[0]], counts[short[0]], count, rule)
            raise GateauError("selection.too_few", found + limit_hint(rule))
        taken |= {source: available[source] for source in short}


def largest_remainder(weights: Mapping[str, Fraction], count: int) -> dict[str, int]:
    """Split `count` by the weights: whole quotas first, then the rest by the largest remainders, ties by name."""
    total = sum(weights.values())
    quotas = {name: count * weight / total for name, weight in weights.items()}
    given = {name: quota.__floor__() for name, quota in quotas.items()}
    order = sorted(quotas, key=lambda name: (given[name] - quotas[name], name))
    for name in order[: count - sum(given.values())]:
        given[name] += 1
    return given


def _short(source: str, share: int, available: int, samples: int, count: int, rule: RuleConfig) -> str:
    which = "with a score" if rule.per_document is None else "that can be chosen"
    scored = "" if available == samples else f" {which} (of {samples})"
    unit, amount = ("samples" + scored, "count or fraction") if rule.budget is None else (rule.budget_unit, "budget")
    return (
        f"selection.rule {rule.rule}: source {source!r} has {available} {unit}, but its share of {count} is "
        f"{share}. Lower selection.{amount}, change selection.shares, or set selection.short_source: share, "
        "which leaves the rest to the other sources"
    )


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
        source = used_up["source"].unique().sort()[0]
        mine = ranked.filter(pl.col("source") == source)
        which = "scored samples" if rule.per_document is None else "samples that can be chosen"
        raise GateauError(
            "selection.too_few",
            f"selection.rule per_source_tokens: source {source!r} has {mine.filter(countable()).height} {which} "
            f"of {mine.height}, fewer than its percentage needs. Lower selection.budget, find out why samples "
            f"were rejected, or set selection.short_source: share{limit_hint(rule)}",
        )
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


def affordable(samples: pl.DataFrame, budget: int, cost: str = "tokens") -> pl.DataFrame:
    """Return the first samples that have at most `budget` tokens together, or cost that by another column, int."""
    return samples.filter(pl.col(cost).cast(pl.Int64).cum_sum() <= budget)


def _within(samples: pl.DataFrame, rule: RuleConfig) -> pl.DataFrame:
    """Return the first samples with at most `rule.budget` tokens together; raise GateauError if there are none."""
    assert rule.most_tokens is not None
    if not samples.height:
        raise GateauError(
            "selection.no_scores",
            f"selection.rule {rule.rule}: no sample has both a score and a number of tokens: read the reasons in "
            "the rejected tables",
        )
    found = affordable(samples, rule.most_tokens)
    if not found.height:
        raise GateauError(
            "selection.budget",
            f"selection.budget: {rule.most_tokens} {rule.budget_unit} are fewer than the "
            f"{samples['tokens'][0]} of the first sample, so nothing would be chosen: raise it",
        )
    return found


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
