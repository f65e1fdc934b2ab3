"""Prepare the comparison of methods for the page."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import polars as pl

from gateau_dagster.comparison.result import Disputed, MethodComparison, Overlap, Pair
from gateau_dagster.readable import percent
from gateau_dagster.report.inputs import ReportInputs
from gateau_dagster.report.plots.score_plots import SOURCES, source_colours
from gateau_dagster.report.text import Snippet, printable, snippet

_FEW = 10  # common samples; with fewer, a correlation is not among the findings


@dataclass(frozen=True, kw_only=True)
class PlaceOf:
    """One method's rank of a sample, and its `share` of the scored samples; both None without a score."""

    name: str
    rank: int | None
    share: float | None


@dataclass(frozen=True, kw_only=True)
class DisputedCard:
    """A sample that methods rank far apart, with the ends of its texts. `places`: the first rank first."""

    sample_id: str
    source: str
    places: list[PlaceOf]
    context: Snippet
    instruction: Snippet
    response: Snippet

    @property
    def ranked(self) -> list[PlaceOf]:
        """Return the places of the methods that score it."""
        return [place for place in self.places if place.rank is not None]


@dataclass(frozen=True, kw_only=True)
class MethodsSection:
    """The figures of the section, besides its pictures; the template has the text."""

    comparison: MethodComparison
    disputed: list[DisputedCard]

    @property
    def reference(self) -> str:
        """Return the method that the others are compared with."""
        return reference_of(self.comparison)

    @property
    def measured(self) -> bool:
        """Return whether a ground truth is known."""
        return any(facts.auroc is not None for facts in self.comparison.methods)

    @property
    def overlaps(self) -> list[tuple[str, Pair]]:
        """Return each other method and its pair with the reference, the most common samples first."""
        found = [(name, pair_of(self.comparison.pairs, self.reference, name)) for name in self._others]
        return sorted(found, key=lambda each: (-(each[1].overlaps[0].overlap or 0.0), each[0]))

    @property
    def in_common(self) -> list[tuple[str, str, Overlap]]:
        """Return a word, another method, and what it has in common with the reference among as many as are chosen: the
        most and the least.
        """
        pairs = ((name, pair_of(self.comparison.pairs, self.reference, name).overlaps[-1]) for name in self._others)
        known = [(name, level) for name, level in pairs if level.overlap is not None]
        words = (("most", max), ("least", min)) if len(known) > 1 else (("this", max),) if known else ()
        return [(word, *extreme(known, key=lambda each: each[1].overlap or 0.0)) for word, extreme in words]

    @property
    def extremes(self) -> tuple[Pair, Pair] | None:
        """Return the most alike and the least alike pair; None if there are few."""
        found = self.comparison
        enough = min(_FEW, found.samples)
        known = [pair for pair in found.pairs if pair.spearman is not None and pair.common >= enough]
        if len(found.methods) <= 2 or not known:
            return None
        alike, apart = (extreme(known, key=lambda pair: pair.spearman or 0.0) for extreme in (max, min))
        return alike, apart

    @property
    def buckets(self) -> list[tuple[str, list[float | None]]]:
        """Return each other method's rank correlation with the reference by length bucket; None if undefined."""
        buckets, reference = self.comparison.buckets, self.reference
        return [
            (name, [pair_of(each.pairs, reference, name).spearman if each.samples else None for each in buckets])
            for name in self._others
        ]

    @property
    def levels(self) -> list[tuple[str, int]]:
        """Return the levels of overlap that are shown: their names, and their indices in Pair.overlaps.

        The last level is the number of selected samples. If a share gives the same number, one column serves both.
        """
        if not self.comparison.pairs:
            return []
        *shares, chosen = self.comparison.pairs[0].overlaps
        found = [
            (f"best {percent(level.share, 0)}" + (" (as chosen)" if level.wanted == chosen.wanted else ""), place)
            for place, level in enumerate(shares)
        ]
        if all(level.wanted != chosen.wanted for level in shares):
            found.append((f"first {chosen.wanted:,} (as chosen)", len(shares)))
        return found

    @property
    def swatches(self) -> list[tuple[str, str]]:
        """Return colour and name of each source in the picture of what methods prefer; one colour, one entry."""
        places = source_colours(len(self.comparison.sources))
        names = [printable(name if len(name) <= 60 else name[:60] + "…") for name in self.comparison.sources]
        return [
            (SOURCES[place], name if places.count(place) == 1 else "other sources")
            for number, (place, name) in enumerate(zip(places, names, strict=True))
            if places.index(place) == number
        ]

    @property
    def _others(self) -> list[str]:
        return [name for name in self.comparison.names if name != self.reference]


def reference_of(comparison: MethodComparison) -> str:
    """Return the method that selects; the first one if no compared method does."""
    return comparison.selected_by or comparison.names[0]


def methods_section(inputs: ReportInputs) -> MethodsSection | None:
    """Return the section of `inputs.methods`; None without a comparison."""
    comparison = inputs.methods
    if comparison is None:
        return None
    wanted = [one.sample_id for one in comparison.disputed]
    texts = inputs.raw.lazy().filter(pl.col("sample_id").is_in(wanted))
    rows = texts.select("sample_id", "source", "context", "instruction", "response").collect()
    by_id = {row["sample_id"]: row for row in rows.iter_rows(named=True)}
    cards = [_card(one, by_id.get(one.sample_id, {}), comparison) for one in comparison.disputed]
    return MethodsSection(comparison=comparison, disputed=cards)


def pair_of(pairs: tuple[Pair, ...], one: str, two: str) -> Pair:
    """Return the pair of two methods, whichever of them comes first."""
    return next(pair for pair in pairs if {pair.first, pair.second} == {one, two})


def _card(sample: Disputed, texts: Mapping[str, Any], comparison: MethodComparison) -> DisputedCard:
    places = [
        PlaceOf(name=facts.name, rank=rank, share=None if rank is None else rank / facts.scored)
        for facts, rank in zip(comparison.methods, sample.ranks, strict=True)
    ]
    return DisputedCard(
        sample_id=printable(sample.sample_id),
        source=printable(texts.get("source") or "(unknown)"),
        places=sorted(places, key=lambda place: (place.share is None, place.share or 0.0, place.name)),
        context=snippet(texts.get("context") or "", each=500),
        instruction=snippet(texts.get("instruction") or "", each=500),
        response=snippet(texts.get("response") or "", each=500),
    )
