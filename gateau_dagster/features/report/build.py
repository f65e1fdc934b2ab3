"""Build the report: one self-contained HTML document from the inputs, with its cards, shares and pictures."""

# Why one file: a report is mailed, copied and kept beside a model, so it must not lose its pictures. All of them are
# inside, as data URIs, and it loads nothing from elsewhere. The price is its size, so the samples in full are in the
# viewer, which loads them page by page.
#
# Whose texts it shows: the data's, which may hold markup or control characters. They are escaped by the templates, and
# made printable here.

from __future__ import annotations

import base64
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import islice
from typing import Any

import polars as pl
from jinja2 import Environment
from markupsafe import Markup, escape
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.gridspec import GridSpec

from gateau_dagster.comparison.result import Disputed, MethodComparison, Overlap, Pair
from gateau_dagster.config import PRESETS
from gateau_dagster.config.selection import DEPENDENCIES
from gateau_dagster.data.rejects import RejectKind, rejects_among
from gateau_dagster.data.sample import Sample
from gateau_dagster.execution.shard_tables import samples_of
from gateau_dagster.explanation.card import EvidenceCard, Snippet, evidence_card, html_environment, snippet
from gateau_dagster.explanation.evidence import Evidence
from gateau_dagster.explanation.maps import SpanStrip
from gateau_dagster.features.evaluation.statistics.forecast_outcomes import outcome_text
from gateau_dagster.features.evaluation.statistics.results import experiment_section, figure_name, shown
from gateau_dagster.features.report.drawings import benchmark_outcomes, training_facts
from gateau_dagster.features.report.effort import table_efforts
from gateau_dagster.features.report.inputs import PresetComparison, ReportInputs, share
from gateau_dagster.features.report.provenance import provenance
from gateau_dagster.methods.registry import chosen_methods
from gateau_dagster.pipeline.data_checks import without_evidence
from gateau_dagster.pipeline.feature import planted_values
from gateau_dagster.pipeline.selection_reads import scored_by
from gateau_dagster.plots import Drawing
from gateau_dagster.plots.agreement_plots import bucket_name, share_text
from gateau_dagster.plots.score_plots import SOURCES, source_colours
from gateau_dagster.plotting import DARK, INK, entitle, to_svg
from gateau_dagster.readable import (
    duration,
    listed,
    memory,
    percent,
    plural,
    printable,
    quantity,
    unit_of_difference,
)
from gateau_dagster.selection.evidence import NAMED_GAIN
from gateau_dagster.selection.forecast import VERDICTS
from gateau_dagster.selection.presets import ScoreTerms, terms
from gateau_dagster.selection.statistics import auroc_by_source
from gateau_dagster.selection.wording import chosen_by, forecast_lines, forecast_text, ranked_by

_EXAMPLES = 3
_CUT = 300


@dataclass(frozen=True, kw_only=True)
class RejectGroup:
    """Samples of one asset that were rejected for the same kind of reason.

    reason: with the ranges of its amounts. If reasons differ in more, the first one's, in full.
    """

    asset: str
    reason: str
    count: int
    examples: list[str]


def reject_groups(rejected: Mapping[str, pl.DataFrame], *, most: int = 50) -> list[RejectGroup]:
    """Return groups of the REJECTED tables by asset, the largest first within an asset; at most `most` per asset.

    Reasons that differ only in numbers or quoted text are of one kind. Kinds beyond `most` form one group.
    """
    groups: list[RejectGroup] = []
    for asset, frame in rejected.items():
        kinds = rejects_among(frame.select("sample_id", "reason").sort("sample_id"), frame.height).kinds
        groups.extend(_group(asset, kind.kind, [kind]) for kind in kinds[:most])
        if rest := kinds[most:]:
            groups.append(_group(asset, f"{len(rest):,} other kinds of reason", rest))
    return groups


def _group(asset: str, reason: str, kinds: Sequence[RejectKind]) -> RejectGroup:
    places, reasons = zip(*(example for kind in kinds for example in kind.examples), strict=True)
    if "…" in reason:
        reason = reasons[0]
    text = printable(reason if len(reason) <= _CUT else reason[:_CUT] + " …")
    shown = [printable(name[:80]) for name in places[:_EXAMPLES]]
    return RejectGroup(asset=asset, reason=text, count=sum(kind.count for kind in kinds), examples=shown)


@dataclass(frozen=True, kw_only=True)
class Truth:
    """`auroc` of the ranking, and shares of samples that need far context, among all scored and the selected ones."""

    auroc: float
    far_share: float | None
    far_selected: float | None


def truth(inputs: ReportInputs, comparison: PresetComparison | None) -> Truth | None:
    """Return the figures for GATEAU's preset or for the method; None without a ground truth that separates the samples.

    As in a comparison of methods, a sample without a score counts as one of the last.
    """
    if inputs.by_gateau:
        assert comparison is not None
        if not comparison.auroc:
            return None
        return Truth(
            auroc=comparison.auroc[inputs.preset],
            far_share=comparison.far_share,
            far_selected=comparison.far_selected,
        )
    far = inputs.far_ranked
    if far is None:
        return None
    assert inputs.method_scores is not None
    sources = inputs.raw.lazy().select("sample_id", "source").collect()
    auroc = auroc_by_source(sources, inputs.method_scores, "score", inputs.config.selection.ground_truth)
    assert auroc is not None, "the scored samples alone are told apart"
    scored, selected = far.to_numpy(), inputs.ranked["selected"].to_numpy()
    return Truth(auroc=auroc, far_share=float(scored.mean()), far_selected=share(scored, selected))


SHOWN = 10
_FACTS = {
    "perplexity_short": "perplexity, short model",
    "perplexity_long": "perplexity, long model",
    "perplexity": "perplexity, long model",
    "context_tokens": "context tokens",
    "response_tokens": "response tokens",
    "context_bytes": "context bytes",
    "response_bytes": "response bytes",
    "segments": "segments",
}


@dataclass(frozen=True, kw_only=True)
class SampleCard:
    """One sample with its scores and texts; long texts are shortened to their ends.

    terms, ranks: of its score and under GATEAU's presets, if GATEAU selects.
    evidence: the map of what raised the response's probability; if None, `context` and `response` are shown instead.
    strips: the maps of methods that read spans.
    """

    sample_id: str
    source: str
    rank: int
    selected: bool
    far: bool
    score: float | None
    facts: list[tuple[str, float | int | None]]
    terms: ScoreTerms | None
    ranks: list[tuple[str, int | None]]
    context: Snippet
    instruction: Snippet
    response: Snippet
    evidence: EvidenceCard | None = None
    strips: Sequence[SpanStrip] = ()


@dataclass(frozen=True, kw_only=True)
class SampleCards:
    """`top` and `bottom` of the ranking. no_evidence: why there are no evidence maps; empty if none were requested."""

    top: list[SampleCard]
    bottom: list[SampleCard]
    no_evidence: str


def sample_cards(inputs: ReportInputs) -> SampleCards:
    """Return the first and the last `SHOWN` samples by rank under the selecting method.

    No sample is in both lists. With few samples, the first half is the top.
    """
    ordered = inputs.ranked.sort("rank")
    top = ordered.head(min(SHOWN, (ordered.height + 1) // 2))
    bottom = ordered.tail(min(SHOWN, ordered.height - top.height))
    wanted = [*top["sample_id"], *bottom["sample_id"]]
    by_id = {sample.sample_id: sample for sample in _samples(inputs, pl.col("sample_id").is_in(wanted))}
    unseen = dict(inputs.unseen.filter(pl.col("sample_id").is_in(wanted)).select("sample_id", "unseen").iter_rows())
    found = inputs.evidence([by_id[name] for name in wanted])
    maps = {name: evidence_card(one, f"e{place}") for place, (name, one) in enumerate(found.maps.items(), start=1)}

    def card(row: dict) -> SampleCard:
        name = row["sample_id"]
        sample, context = by_id[name], by_id[name].context
        return SampleCard(
            sample_id=printable(name),
            source=printable(row["source"]),
            rank=row["rank"],
            selected=row["selected"],
            far=row["far"],
            score=row["score"],
            facts=[(fact, row[column]) for column, fact in _FACTS.items() if column in row],
            terms=terms(row, inputs.config.selection) if inputs.by_gateau else None,
            ranks=[(preset, row[f"rank_{preset}"]) for preset in PRESETS if f"rank_{preset}" in row],
            # Tokens are assumed to be equally long, so the cut is near its true position.
            context=snippet(context, unseen=round(unseen.get(name, 0.0) * len(context))),
            instruction=snippet(sample.instruction, each=500),
            response=snippet(sample.response, each=500),
            evidence=maps.get(name),
            strips=found.strips.get(name, ()),
        )

    first, last = ([card(row) for row in part.iter_rows(named=True)] for part in (top, bottom))
    return SampleCards(top=first, bottom=last, no_evidence=found.missing)


def _samples(inputs: ReportInputs, which: pl.Expr) -> Iterator[Sample]:
    return samples_of(inputs.raw.lazy().filter(which).collect())


_SOURCES = 20  # lines of a table by source; other sources share one line
_BATCH = 256  # maps per batch

RIGHT = pl.Schema({"sample_id": pl.String(), "planted": pl.Boolean(), "right": pl.Boolean()})


@dataclass(frozen=True, kw_only=True)
class NamedShare:
    """The samples of a source that have a map, and how many of these maps name a far segment.

    right: how many name exactly the far segments that hold planted facts; None if no facts are known.
    """

    source: str
    samples: int
    named: int
    right: int | None

    @property
    def share(self) -> float:
        """Return the share of samples with a named segment."""
        return self.named / self.samples

    @property
    def right_share(self) -> float | None:
        """Return the share of samples with the right segments."""
        return None if self.right is None else self.right / self.samples


@dataclass(frozen=True, kw_only=True)
class EvidenceShares:
    """The table, and a sentence on its accuracy if the truth is known."""

    sources: list[NamedShare]
    sentence: str


def evidence_shares(inputs: ReportInputs) -> EvidenceShares | None:
    """Return the shares by source; None if no segments were measured."""
    if inputs.named is None or inputs.named.is_empty():
        return None
    sources = inputs.raw.lazy().select("sample_id", "source").collect()
    table = inputs.named.with_columns(some=pl.col("named").list.len() > 0).join(sources, on="sample_id", how="left")
    known = right_segments(inputs)
    found = table.join(known, on="sample_id", how="left")
    lines = (
        found.group_by("source")
        .agg(pl.len().alias("samples"), pl.col("some").sum(), pl.col("right").sum(), known=pl.col("right").count())
        .sort(["samples", "source"], descending=[True, False])
    )
    rest = lines.slice(_SOURCES).select(pl.col("samples", "some", "right", "known").sum())
    shown = [_share(printable(row["source"][:200]), row) for row in lines.head(_SOURCES).iter_rows(named=True)]
    if lines.height > _SOURCES:
        shown.append(_share("other sources", rest.row(0, named=True)))
    return EvidenceShares(sources=shown, sentence=_sentence(known))


def right_segments(inputs: ReportInputs) -> pl.DataFrame:
    """Return RIGHT for the samples with a map; no rows if no facts are known to be planted in them.

    It says whether a far fact is planted, and whether the map names exactly the segments with planted facts.
    """
    found: list[tuple[str, bool, bool]] = []
    planted = planted_values(inputs.config)
    if planted is None:
        return RIGHT.to_frame()
    samples = _samples(inputs, pl.lit(True))
    # In batches, since the maps of all samples would not fit into memory.
    while batch := [*islice(samples, _BATCH)]:
        for name, one in inputs.evidence(batch).maps.items():
            holding = far_segments_with(one, planted(one.sample.context, one.sample.instruction))
            found.append((name, bool(holding), {*one.named} == holding))
    return pl.DataFrame(found, schema=RIGHT, orient="row")


def far_segments_with(found: Evidence, characters: list[int]) -> set[int]:
    """Return the far segments that contain these characters of the context."""
    far = [segment for segment in found.segments if not segment.near]
    return {one.index for one in far if any(one.start <= character < one.end for character in characters)}


def _share(source: str, row: Mapping[str, int]) -> NamedShare:
    right = row["right"] if row["known"] == row["samples"] else None
    return NamedShare(source=source, samples=row["samples"], named=row["some"], right=right)


def _sentence(known: pl.DataFrame) -> str:
    """Return how often the maps are right; empty if the truth is not known."""
    parts = []
    for planted, of, named in (
        (True, "with a planted fact that the short model does not see", "just the segments that hold such facts"),
        (False, "without one", "no segment"),
    ):
        right = known.filter(pl.col("planted") == planted)["right"]
        if right.len():
            share = percent(int(right.sum()) / right.len())
            parts.append(f"of {plural(right.len(), 'sample')} {of}, {named} for {right.sum():,} ({share})")
    return f"It names, {'; '.join(parts)}." if parts else ""


NARROW = 4.6
"""Width in inches: a phone shows such a figure at nearly its own size."""
_CELL = 0.42  # inches per column of a matrix, and for the parts beside the columns
_BESIDE = 1.7
_TITLE, _LABEL = 44, 46  # characters in a line of that width
_COLOUR = re.compile("|".join(DARK))


@dataclass(frozen=True, kw_only=True)
class Picture:
    """A figure as data URIs, and its alternative text. `narrow`: with its panels below each other."""

    wide: str
    narrow: str
    alt: str


def pictures(drawn: Mapping[str, Drawing]) -> dict[str, Picture]:
    """Return the drawings as pictures for the page. This changes the figures: their panels are stacked afterwards."""
    return {name: _picture(drawing) for name, drawing in drawn.items()}


def _picture(drawing: Drawing) -> Picture:
    wide = to_svg(drawing.figure)
    stack(drawing.figure)
    return Picture(wide=_uri(wide), narrow=_uri(to_svg(drawing.figure)), alt=drawing.alt)


def _uri(svg: bytes) -> str:
    # As the source of an image, since nothing in an SVG document can then reach the page around it.
    return f"data:image/svg+xml;base64,{base64.b64encode(themed(svg)).decode('ascii')}"


def themed(svg: bytes) -> bytes:
    """Return the document with its neutral colours as variables that change on a dark page (plotting.DARK)."""
    names = {colour: f"--c{number}" for number, colour in enumerate(DARK)}
    light = ";".join(f"{name}:{colour}" for colour, name in names.items())
    dark = ";".join(f"{name}:{DARK[colour]}" for colour, name in names.items())
    style = (
        f"<style>svg{{{light};fill:var({names[INK]})}}@media(prefers-color-scheme:dark){{svg{{{dark}}}}}</style></svg>"
    )
    text = _COLOUR.sub(lambda found: f"var({names[found.group()]})", svg.decode())
    head, end, rest = text.rpartition("</svg>")
    assert end, "an SVG document"
    return f"{head}{style}{rest}".encode()


def stack(figure: Figure) -> None:
    """Put the figure's panels below each other, at the width of a phone, with unchanged heights.

    Labels that a panel hides because its neighbour shows them become visible.
    """
    panels = [axis for axis in figure.axes if axis.get_subplotspec() is not None and axis.get_visible()]
    rows = max((axis.get_subplotspec().get_gridspec().nrows for axis in panels), default=1)  # pyright: ignore
    height = figure.get_figheight() / rows * max(1, len(panels))
    figure.set_size_inches(max([NARROW, *(_matrix_width(axis) for axis in panels)]), height)
    grid = GridSpec(max(1, len(panels)), 1, figure=figure)
    for place, axis in enumerate(panels):
        axis.set_subplotspec(grid[place])
        axis.tick_params(labelleft=True)
        for text in (axis.xaxis.label, axis.yaxis.label):
            text.set_visible(True)
            text.set_text(textwrap.fill(text.get_text(), _LABEL))
    entitle(figure, textwrap.fill(figure.get_suptitle(), _TITLE))
    figure.set_layout_engine("constrained")


def _matrix_width(axis: Axes) -> float:
    low, high = axis.get_xlim()
    return _BESIDE + _CELL * abs(high - low) if axis.images else 0.0


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
        return self.comparison.reference

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


RAW = "raw_long_sft"


@dataclass(frozen=True, kw_only=True)
class Counts:
    """The numbers of samples that were read, and what became of them; `given` = `invalid` + `unscorable` + `scored`.

    `reserved`: scored samples that cannot be selected.
    """

    given: int
    invalid: int
    unscorable: int
    scored: int
    reserved: int
    selected: int


def build_report(inputs: ReportInputs, comparison: PresetComparison | None, drawn: Mapping[str, Drawing]) -> str:
    """Return the whole report as HTML without scripts; nothing is loaded from outside.

    Every text from the data is escaped: samples are untrusted.

    Args:
        comparison: of the presets, from report.inputs.compare.
        drawn: from `drawings`; a figure that is missing there is left out.
    """
    cards, efforts = sample_cards(inputs), table_efforts(inputs.efforts)
    return _environment().get_template("report.html.j2").render(
        inputs=inputs,
        selection=inputs.config.selection,
        ranked_by=ranked_by(inputs.config.selection),
        chosen_by=chosen_by(inputs.config.selection, inputs.rule, far=inputs.far_chosen),
        scored_by=scored_by(inputs.config),
        by_gateau=inputs.by_gateau,
        deciding=chosen_methods(inputs.config)[inputs.config.selection.method],
        counts=counts(inputs),
        comparison=comparison,
        pictures=pictures(drawn),
        top=cards.top,
        bottom=cards.bottom,
        no_evidence=cards.no_evidence,
        evidence=evidence_shares(inputs),
        named_gain=NAMED_GAIN,
        dependencies=dependency_table(inputs),
        without_evidence=without_evidence(inputs.config),
        sources=source_table(inputs.ranked),
        length_unit=inputs.length_unit,
        rejects=reject_groups(inputs.rejected),
        verdicts=VERDICTS,
        forecast=[] if inputs.forecast is None else forecast_lines(inputs.forecast),
        training=training_facts(inputs.training_log) if inputs.training_log else None,
        benchmarks=benchmark_outcomes(inputs),
        experiment=None if inputs.experiment is None else experiment_section(inputs.experiment),
        further=inputs.further,
        figure_name=figure_name,
        efforts=efforts if any(table.measured for table in efforts) else (),
        far=inputs.far_ranked is not None,
        truth=truth(inputs, comparison),
        methods=methods_section(inputs),
        provenance=provenance(
            inputs.config,
            fingerprints=inputs.fingerprints,
            generated_at=inputs.generated_at,
            command=inputs.command,
        ),
    )  # fmt: skip


def counts(inputs: ReportInputs) -> Counts:
    """Count the samples from input to selection."""
    invalid = inputs.rejected[RAW].height if RAW in inputs.rejected else 0
    scored = inputs.ranked.height
    return Counts(
        given=inputs.given + invalid,
        invalid=invalid,
        unscorable=inputs.given - scored,
        scored=scored,
        reserved=int(inputs.ranked["sample_id"].is_in(list(inputs.reserved)).sum()),
        selected=inputs.selected_subset.height,
    )


def source_table(scores: pl.DataFrame) -> list[dict]:
    """Return `source`, `scored`, `selected` and `share` (selected / scored) by source, the most selected first.

    Sources beyond `_SOURCES` share one line.
    """
    table = (
        scores.group_by("source")
        .agg(pl.len().alias("scored"), pl.col("selected").sum(), pl.col("far").any())
        .sort(["selected", "scored", "source"], descending=[True, True, False])
    )
    rest = table.slice(_SOURCES)
    rows = table.head(_SOURCES).with_columns(
        pl.col("source").map_elements(lambda source: printable(source[:200]), return_dtype=pl.String)
    )
    lines = list(rows.iter_rows(named=True))
    if not rest.is_empty():
        name = plural(rest.height, "other source")
        lines.append({"source": name, "scored": rest["scored"].sum(), "selected": rest["selected"].sum(), "far": False})
    return [{**line, "share": line["selected"] / line["scored"]} for line in lines]


def dependency_table(inputs: ReportInputs) -> list[dict]:
    """Return `dependency`, `samples`, `share`, `selected` and `selected_share` of each dependency; empty if unknown."""
    if inputs.dependencies is None or inputs.dependencies.is_empty():
        return []
    chosen = inputs.dependencies.join(inputs.selected_subset, on="sample_id", how="semi")
    every, of_chosen = (
        {name: int((table["dependency"] == name).sum()) for name in DEPENDENCIES}
        for table in (inputs.dependencies, chosen)
    )
    return [
        {
            "dependency": name,
            "samples": every[name],
            "share": every[name] / inputs.dependencies.height,
            "selected": of_chosen[name],
            "selected_share": of_chosen[name] / max(1, chosen.height),
        }
        for name in DEPENDENCIES
    ]


def breakable(name: str) -> Markup:
    """Return a name that may break after each `_`: HTML, escaped."""
    return Markup("_<wbr>").join(name.split("_"))


def marked(sentence: str) -> Markup:
    """Return a sentence as HTML, with `code` between backticks; all else is escaped."""
    parts = (escape(printable(part)) for part in sentence.split("`"))
    return Markup("").join(Markup("<code>{}</code>").format(part) if n % 2 else part for n, part in enumerate(parts))


@cache
def _environment() -> Environment:
    environment = html_environment("gateau_dagster.features.report")
    environment.filters.update(
        bucket_name=bucket_name, share_text=share_text, printable=printable, breakable=breakable, marked=marked
    )
    environment.filters.update(duration=duration, memory=memory, quantity=quantity, shown=shown, listed=listed)
    environment.filters.update(forecast_text=forecast_text, outcome_text=outcome_text)
    environment.filters.update(percent=percent, unit_of_difference=unit_of_difference)
    return environment
