"""Choose the best of every source in proportion: split a number of samples by largest remainder."""

from collections.abc import Mapping
from fractions import Fraction

import polars as pl

from gateau_dagster.config.selection import RuleConfig
from gateau_dagster.errors import GateauError
from gateau_dagster.readable import nearest_name


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
    """Return how many samples each source gives.

    Args:
        counts: samples of each source.
        available: how many of them can be chosen: they have a score, and no limit excludes them.
        rule: its shares, and what a short source does.
        count: samples of all sources together.

    Raises:
        GateauError: shares name an unknown source, or a source is short.
    """
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
    return (
        f"selection.rule per_source: source {source!r} has {available} samples{scored}, but its share of {count} is "
        f"{share}. Lower selection.count or fraction, change selection.shares, or set selection.short_source: share, "
        "which leaves the rest to the other sources"
    )
