"""Describe the comparison of methods in sentences and rows for readers who do not know the papers."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import polars as pl

from gateau_dagster.comparison.result import Bucket, MethodComparison, MethodFacts, Pair
from gateau_dagster.readable import fixed, percent, plural
from gateau_dagster.report.inputs import ReportInputs
from gateau_dagster.report.plots.agreement_plots import bucket_name
from gateau_dagster.report.plots.score_plots import SOURCES, source_colours
from gateau_dagster.report.text import Snippet, printable, snippet

_FEW = 10  # common samples; with fewer, a correlation is not among the findings


@dataclass(frozen=True, kw_only=True)
class OverlapRow:
    """A method and its pair with the reference."""

    name: str
    pair: Pair


@dataclass(frozen=True, kw_only=True)
class BucketRow:
    """A method's rank correlation with the reference in each length bucket; None if it is undefined."""

    name: str
    spearman: list[float | None]


@dataclass(frozen=True, kw_only=True)
class PlaceOf:
    """One method's rank of a sample, and its `share` of the scored samples; both None without a score."""

    name: str
    rank: int | None
    share: float | None


@dataclass(frozen=True, kw_only=True)
class DisputedCard:
    """A sample that methods rank far apart, with the ends of its texts. `first` ranks it highest, `last` lowest."""

    number: int
    sample_id: str
    source: str
    places: list[PlaceOf]
    first: PlaceOf
    last: PlaceOf
    context: Snippet
    instruction: Snippet
    response: Snippet


@dataclass(frozen=True, kw_only=True)
class MethodsSection:
    """The contents of the section besides its pictures.

    reference: the method that the others are compared with.
    levels: see levels_of.
    empty: names of the length buckets without samples.
    """

    comparison: MethodComparison
    reference: str
    findings: list[str]
    levels: list[tuple[str, int]]
    overlaps: list[OverlapRow]
    buckets: list[BucketRow]
    empty: str
    disputed: list[DisputedCard]
    measured: bool


def reference_of(comparison: MethodComparison) -> str:
    """Return the method that selects; the first one if no compared method does."""
    return comparison.selected_by or comparison.names[0]


def methods_section(inputs: ReportInputs) -> MethodsSection | None:
    """Return the section of `inputs.methods`; None without a comparison."""
    comparison = inputs.methods
    if comparison is None:
        return None
    reference = reference_of(comparison)
    others = [name for name in comparison.names if name != reference]
    overlaps = [OverlapRow(name=name, pair=pair_of(comparison.pairs, reference, name)) for name in others]
    return MethodsSection(
        comparison=comparison,
        reference=reference,
        findings=findings(comparison, reference),
        levels=levels_of(comparison),
        overlaps=sorted(overlaps, key=lambda row: (-(row.pair.overlaps[0].overlap or 0.0), row.name)),
        buckets=[_bucket_row(comparison.buckets, reference, name) for name in others],
        empty=" or ".join(bucket_name(bucket) for bucket in comparison.buckets if not bucket.samples),
        disputed=_cards(inputs, comparison),
        measured=any(facts.auroc is not None for facts in comparison.methods),
    )


def source_swatches(inputs: ReportInputs) -> list[tuple[str, str]]:
    """Return colour and name of each source in the picture of what methods prefer; sources of one colour are merged."""
    if inputs.methods is None:
        return []
    places = source_colours(len(inputs.methods.sources))
    names = [printable(name if len(name) <= 60 else name[:60] + "…") for name in inputs.methods.sources]
    return [
        (SOURCES[place], name if places.count(place) == 1 else "other sources")
        for number, (place, name) in enumerate(zip(places, names, strict=True))
        if places.index(place) == number
    ]


def pair_of(pairs: tuple[Pair, ...], one: str, two: str) -> Pair:
    """Return the pair of two methods, whichever of them comes first."""
    return next(pair for pair in pairs if {pair.first, pair.second} == {one, two})


def findings(comparison: MethodComparison, reference: str) -> list[str]:
    """Return the most telling facts as sentences, each complete by itself."""
    found = []
    enough = min(_FEW, comparison.samples)
    known = [pair for pair in comparison.pairs if pair.spearman is not None and pair.common >= enough]
    if len(comparison.methods) > 2 and known:
        alike = max(known, key=lambda pair: pair.spearman or 0.0)
        found.append(
            f"Most alike: {alike.first} and {alike.second}, with a rank correlation of {fixed(alike.spearman)}."
        )
        apart = min(known, key=lambda pair: pair.spearman or 0.0)
        found.append(f"Furthest apart: {apart.first} and {apart.second}, with {fixed(apart.spearman)}.")
    with_reference = [
        (pair, pair.overlaps[-1])
        for pair in comparison.pairs
        if reference in (pair.first, pair.second) and pair.overlaps[-1].overlap is not None
    ]
    if with_reference:
        words = (("most", max), ("least", min)) if len(with_reference) > 1 else (("this", max),)
        for word, extreme in words:
            pair, level = extreme(with_reference, key=lambda item: item[1].overlap or 0.0)
            other = pair.second if pair.first == reference else pair.first
            shares = f"{percent(level.overlap, 0)}, where chance gives {percent(level.expected, 0)}."
            place = f"Among the first {comparison.chosen:,}, as many as are chosen"
            found.append(f"{place}, {reference} has {word} in common with {other}: {shares}")
    found += [_unscored(facts, comparison.samples) for facts in comparison.methods if facts.scored < comparison.samples]
    return found


def _unscored(facts: MethodFacts, samples: int) -> str:
    if not facts.scored:
        return f"{facts.name} cannot score any sample, so there is nothing to compare it by."
    missing = samples - facts.scored
    return (
        f"{facts.name} cannot score {plural(missing, 'sample')} ({percent(missing / samples)}): it never chooses "
        f"{'it' if missing == 1 else 'them'}, and its correlations leave {'it' if missing == 1 else 'them'} out."
    )


def levels_of(comparison: MethodComparison) -> list[tuple[str, int]]:
    """Return the levels of overlap that are shown: their names, and their indices in Pair.overlaps.

    The last level is the number of selected samples. If a share gives the same number, one column serves both.
    """
    if not comparison.pairs:
        return []
    shares, chosen = comparison.pairs[0].overlaps[:-1], comparison.pairs[0].overlaps[-1]
    found = [
        (f"best {percent(level.share, 0)}" + (" (as chosen)" if level.wanted == chosen.wanted else ""), place)
        for place, level in enumerate(shares)
    ]
    if all(level.wanted != chosen.wanted for level in shares):
        found.append((f"first {chosen.wanted:,} (as chosen)", len(shares)))
    return found


def _bucket_row(buckets: tuple[Bucket, ...], reference: str, name: str) -> BucketRow:
    found = [pair_of(bucket.pairs, reference, name).spearman if bucket.samples else None for bucket in buckets]
    return BucketRow(name=name, spearman=found)


def _cards(inputs: ReportInputs, comparison: MethodComparison) -> list[DisputedCard]:
    wanted = [one.sample_id for one in comparison.disputed]
    texts = inputs.raw.lazy().filter(pl.col("sample_id").is_in(wanted))
    rows = texts.select("sample_id", "source", "context", "instruction", "response").collect()
    by_id = {row["sample_id"]: row for row in rows.iter_rows(named=True)}
    return [
        _card(number, one.sample_id, one.ranks, by_id.get(one.sample_id, {}), comparison)
        for number, one in enumerate(comparison.disputed, start=1)
    ]


def _card(
    number: int, sample_id: str, ranks: tuple[int | None, ...], texts: Mapping[str, Any], comparison: MethodComparison
) -> DisputedCard:
    places = [
        PlaceOf(name=facts.name, rank=rank, share=None if rank is None else rank / facts.scored)
        for facts, rank in zip(comparison.methods, ranks, strict=True)
    ]
    known = [place for place in places if place.share is not None]
    return DisputedCard(
        number=number,
        sample_id=printable(sample_id),
        source=printable(texts.get("source") or "(unknown)"),
        places=sorted(places, key=lambda place: (place.share is None, place.share or 0.0, place.name)),
        first=min(known, key=lambda place: place.share or 0.0),
        last=max(known, key=lambda place: place.share or 0.0),
        context=snippet(texts.get("context") or "", each=500),
        instruction=snippet(texts.get("instruction") or "", each=500),
        response=snippet(texts.get("response") or "", each=500),
    )
