"""Build the sections on synthetic samples, a judge's other ratings and contaminated questions, as plain data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import polars as pl

from gateau_dagster.data.sample import Sample
from gateau_dagster.evaluation.benchmark import PageFigure, PageSection, PageTable
from gateau_dagster.evaluation.contamination import touched
from gateau_dagster.evaluation.judging.characteristics import BEST, HIGHEST, LOWEST, WORST, mean_ratings
from gateau_dagster.evaluation.judging.judge_answers import tallies
from gateau_dagster.readable import plural, printable
from gateau_dagster.report.evidence_card import (
    EvidenceCard,
    EvidenceMaps,
    Snippet,
    SpanStrip,
    Stretch,
    evidence_card,
    snippet,
)
from gateau_dagster.synthesis.checks import CHECKS

if TYPE_CHECKING:  # matplotlib is only needed for drawing
    from matplotlib.figure import Figure

_NOTABLE_BIAS = 0.2
_OF_EACH = 10  # accepted and refused synthetic samples that are shown
_SHORT = 300  # characters of evidence that are shown
_SHOWN = 20


@dataclass(frozen=True, kw_only=True)
class CandidateCard:
    """A synthetic candidate with its texts, shortened to their ends.

    reason: what refuses it; empty if it is accepted. facts: the figures of its checks.
    places: the passages of the question in the context; None without a context. quotes: the evidence of each. gains:
    what each passage adds; None if no check compared them. evidence, strips: as of a sample's card.
    """

    sample_id: str
    kind: str
    reason: str
    detail: str
    facts: list[tuple[str, float | int | None]]
    context: Snippet
    instruction: Snippet
    response: Snippet
    places: SpanStrip | None
    quotes: Sequence[str]
    gains: SpanStrip | None
    evidence: EvidenceCard | None
    strips: Sequence[SpanStrip]


@dataclass(frozen=True, kw_only=True)
class FurtherSection(PageSection):
    """An additional section of the page. anchor: its name in URLs. cards: by their heading, behind the tables."""

    anchor: str
    title: str
    cards: Mapping[str, Sequence[CandidateCard]] = field(default_factory=dict)


def characteristics_section(table: pl.DataFrame) -> FurtherSection:
    """Return the section like GATEAU's figure 2. table: characteristics.CHARACTERISTICS."""
    means = mean_ratings(table).with_columns(difference=pl.col(BEST) - pl.col(WORST))
    figure = PageFigure(
        name="characteristics",
        draw=partial(_ratings, means),
        alt="mean ratings of the best and the worst samples by characteristic; the table below holds the same",
        caption="How to read it: right is a higher rating. A dot is the mean over samples, the line its 95 % interval. "
        "Where the best samples' line and the worst ones' lie apart, the judge sees what the score sees.",
    )
    parts = dict(table.select("sample_id", "part").unique().group_by("part").len().iter_rows())
    unrated = int(table["rating"].null_count())
    sentences = [
        f"A judge rated the {plural(parts.get(BEST, 0), 'sample')} with the highest and the {parts.get(WORST, 0):,} "
        f"with the lowest scores, from {LOWEST} to {HIGHEST}; means.",
        *([f"{plural(unrated, 'rating')} could not be read, and count nowhere."] if unrated else []),
    ]
    columns = {"characteristic": "characteristic", BEST: "best", WORST: "worst", "difference": "difference"}
    return FurtherSection(
        anchor="characteristics",
        title="Best and worst samples by a judge",
        sentences=sentences,
        figures=[figure],
        tables=[PageTable(frame=means, columns=columns)],
    )


def pairwise_section(tables: Mapping[str, pl.DataFrame]) -> FurtherSection:
    """Return the section that compares answers of variants in pairs. tables: judge_answers.PAIRWISE by benchmark."""
    rows = [
        {
            "benchmark": name,
            "model": each.one,
            "against": each.other,
            "won": each.wins,
            "tied": each.ties,
            "lost": each.losses,
            "unreadable": each.unreadable,
            "consistent": each.consistent,
            "bias": each.bias,
        }
        for name, table in tables.items()
        for each in tallies(table)
    ]
    frame = pl.DataFrame(rows)
    biased = frame.filter(pl.col("bias").abs() >= _NOTABLE_BIAS).height if rows else 0
    sentences = [
        "Each pair of answers was shown in both orders. Only what wins in both is a win; all else is a tie.",
        "Bias is how much more often the answer that is shown first is preferred, from -1 to 1; 0 is a judge that does "
        "not look at the place.",
        *([f"In {plural(biased, 'row')} the bias is {_NOTABLE_BIAS:g} or more."] if biased else []),
    ]
    columns = {name: name for name in frame.columns} | {"consistent": "same in both"}
    return FurtherSection(
        anchor="pairwise",
        title="Answers set against each other",
        sentences=sentences,
        figures=[_outcomes(name, [row for row in rows if row["benchmark"] == name]) for name in tables],
        tables=[PageTable(frame=frame, columns=columns, shares=["consistent"])],
    )


def _outcomes(benchmark: str, rows: Sequence[Mapping[str, Any]]) -> PageFigure:
    """Return a benchmark's figure like GATEAU's figure 4; the verdicts are a judge's, not people's."""
    return PageFigure(
        name=f"pairwise/{benchmark}",
        draw=partial(_three_shares, benchmark, rows),
        alt=f"shares of turns won, tied and lost of {plural(len(rows), 'pair')}; the table below holds the same",
        caption="How to read it: a bar is a pair of models. Only what wins in both orders is a win.",
    )


def _ratings(means: pl.DataFrame) -> Figure:
    from gateau_dagster.report.plots.experiment_plots import ratings

    return ratings(means, lowest=LOWEST, highest=HIGHEST)


def _three_shares(benchmark: str, rows: Sequence[Mapping[str, Any]]) -> Figure:
    from gateau_dagster.plotting import shortened
    from gateau_dagster.report.plots.experiment_plots import three_shares

    counts = [(row["won"], row["tied"], row["lost"]) for row in rows]
    return three_shares(
        [f"{shortened(row['model'])} – {shortened(row['against'])}" for row in rows],
        [[each / max(1, sum(found)) for each in found] for found in counts],
        title=f"{benchmark}: answers set against each other",
        words=("the first wins", "tie", "the second wins"),
        of="share of the judged turns (%)",
    )


def contamination_section(
    overlaps: Mapping[str, pl.DataFrame], experiment: pl.DataFrame, untouched: pl.DataFrame
) -> FurtherSection:
    """Return the section on questions that are in the data, and on the models' values without them.

    Args:
        overlaps: contamination.OVERLAPS by benchmark, of long samples and conversations.
        experiment: tables.EXPERIMENT.
        untouched: untouched.UNTOUCHED.
    """

    def samples(name: str, questions: pl.DataFrame) -> int:
        return overlaps[name].join(questions, on="question_id", how="semi")["sample_id"].n_unique()

    found = {name: touched(table) for name, table in overlaps.items()}
    counts = pl.DataFrame(
        [{"benchmark": name, "questions": each.height, "samples": samples(name, each)} for name, each in found.items()]
    )
    total = int(counts["questions"].sum()) if counts.height else 0
    sentences = [
        f"{plural(total, 'question')} of the benchmarks {'stands' if total == 1 else 'stand'} in the data: a notable "
        "part of the 13-grams of words, or a near-duplicate.",
        *([] if total else ["So nothing is left out, and the values are those of the experiment."]),
    ]
    columns = {"benchmark": "benchmark", "questions": "questions in the data", "samples": "samples that hold them"}
    tables = [PageTable(frame=counts, columns=columns)]
    if total:
        tables += [_values(experiment, untouched, found), _questions(found)]
    return FurtherSection(
        anchor="contamination", title="Questions that the data contains", sentences=sentences, tables=tables
    )


def _values(experiment: pl.DataFrame, untouched: pl.DataFrame, found: Mapping[str, pl.DataFrame]) -> PageTable:
    """Return the values of the benchmarks with such questions, with them and without."""
    names = [name for name, each in found.items() if each.height]
    both = experiment.select("benchmark", "variant", all="value").join(
        untouched.select("benchmark", "variant", without="value", touched="touched"),
        on=["benchmark", "variant"],
        how="left",
    )
    frame = both.filter(pl.col("benchmark").is_in(names)).with_columns(change=pl.col("without") - pl.col("all"))
    columns = {
        "benchmark": "benchmark",
        "variant": "model",
        "all": "all questions",
        "without": "without these",
        "change": "change",
    }
    return PageTable(frame=frame, columns=columns)


def _questions(found: Mapping[str, pl.DataFrame]) -> PageTable:
    """Return the questions with the largest share in samples."""
    every = pl.concat([each.with_columns(benchmark=pl.lit(name)) for name, each in found.items()])
    frame = every.sort("share", "similarity", "question_id", descending=[True, True, False]).head(_SHOWN)
    folded = f"The {_SHOWN} of them with the largest share" if every.height > _SHOWN else "Which they are"
    columns = {
        "benchmark": "benchmark",
        "question_id": "question",
        "samples": "samples",
        "share": "largest share of its 13-grams",
        "similarity": "largest similarity",
    }
    return PageTable(frame=frame, columns=columns, shares=["share", "similarity"], folded=folded)


def shown_candidates(checked: pl.DataFrame) -> pl.DataFrame:
    """Return ten accepted and ten refused candidates of checks.CHECKED, of as many kinds and reasons as possible."""
    return pl.concat([_varied(checked.filter("accepted")), _varied(checked.filter(~pl.col("accepted")))])


def _varied(candidates: pl.DataFrame) -> pl.DataFrame:
    """Return ten candidates: each is the one whose kind and reason were taken least often before it."""
    few = candidates.sort("sample_id").group_by("kind", "reason", maintain_order=True).head(_OF_EACH)
    left = few.select("kind", "reason", "sample_id").sort("kind", "reason", "sample_id").rows()
    kinds, reasons = Counter[str](), Counter[str]()
    names: list[str] = []
    while left and len(names) < _OF_EACH:
        chosen = min(left, key=lambda each: (kinds[each[0]] + reasons[each[1]], reasons[each[1]], each))
        left.remove(chosen)
        kinds[chosen[0]] += 1
        reasons[chosen[1]] += 1
        names.append(chosen[2])
    order = pl.DataFrame({"sample_id": names}, schema={"sample_id": pl.String()})
    return order.join(candidates, on="sample_id", maintain_order="left").select(candidates.columns)


def synthesis_section(checked: pl.DataFrame, shown: pl.DataFrame, found: EvidenceMaps) -> FurtherSection:
    """Return the section on synthetic samples: the yield, and samples with the places of their evidence.

    Args:
        checked: checks.CHECKED of all candidates.
        shown: those of `shown_candidates` with `question`, `answer`, `evidence`, `context` and `positions` (null for a
            candidate without a context).
        found: the evidence maps of the accepted ones that long_sft reads.
    """
    accepted, total = int(checked["accepted"].sum()), checked.height
    sentences = [
        f"{accepted:,} of {plural(total, 'candidate')} are accepted. The checks come in the order of their cost. The "
        "first that fails is the reason.",
        "A card shows where the passages of the question are in the context: the truth. Below it are the gains of the "
        "passages under theta_B, if the checks came so far: how much likelier each makes the answer beside the others.",
        "Accepted samples that long_sft reads have an evidence map, if the segments of long samples are measured. "
        "Refused ones are never scored as samples, so they show what the checks measured alone.",
    ]
    yields = [
        PageTable(frame=_yield_by(checked, name), columns={name: name, **_YIELD}, shares=["share"])
        for name in ("kind", "length")
    ]
    refused = checked.filter(~pl.col("accepted"))
    reasons = refused["reason"].value_counts(name="candidates").with_columns(share=pl.col("candidates") / max(1, total))
    reasons = reasons.sort(["candidates", "reason"], descending=[True, False])
    columns = {"reason": "reason", "candidates": "refused", "share": "share of all"}
    cards = [_candidate(row, f"s{place}", found) for place, row in enumerate(shown.iter_rows(named=True), start=1)]
    of_each = {
        "accepted": [card for card in cards if not card.reason],
        "refused": [card for card in cards if card.reason],
    }
    return FurtherSection(
        anchor="synthesis",
        title="Synthetic samples",
        sentences=sentences,
        tables=[*yields, PageTable(frame=reasons, columns=columns, shares=["share"])],
        cards={f"{plural(len(each), 'sample')}, {name}": each for name, each in of_each.items() if each},
    )


_YIELD = {"candidates": "candidates", "accepted": "accepted", "share": "yield"}


def _yield_by(checked: pl.DataFrame, name: str) -> pl.DataFrame:
    found = checked.group_by(name).agg(candidates=pl.len(), accepted=pl.col("accepted").sum()).sort(name)
    return found.with_columns(pl.col(name).cast(pl.String), share=pl.col("accepted") / pl.col("candidates"))


def _candidate(row: Mapping[str, Any], key: str, found: EvidenceMaps) -> CandidateCard:
    sample = Sample(
        sample_id=row["sample_id"],
        source=row["kind"],
        context=row["context"] or "",
        instruction=row["question"],
        response=row["answer"],
    )
    places = [(each["start"], each["end"]) for each in row["positions"] or ()]
    one = found.maps.get(sample.sample_id)
    return CandidateCard(
        sample_id=sample.sample_id,
        kind=row["kind"],
        reason=row["reason"],
        detail=printable(row["detail"]),
        facts=[("length", row["length"]), *((name, row[name]) for name in CHECKS if row[name] is not None)],
        context=snippet(sample.context),
        instruction=snippet(sample.instruction, each=500),
        response=snippet(sample.response, each=500),
        places=_strip(sample, places, [1.0] * len(places)) if places else None,
        quotes=[printable(each[:_SHORT]) for each in row["evidence"] or ()],
        gains=None if row["passage_gains"] is None else _strip(sample, places, row["passage_gains"]),
        evidence=None if one is None else evidence_card(one, key),
        strips=found.strips.get(sample.sample_id, ()),
    )


def _strip(sample: Sample, places: Sequence[tuple[int, int]], added: Sequence[float]) -> SpanStrip:
    """Return the gain of each passage of a context in the answer's probability."""
    stretches = [Stretch(start=a, end=b, added=each) for (a, b), each in zip(places, added, strict=True)]
    return SpanStrip(
        methods=["theta_B"],
        adds="the probability of the answer",
        sample=sample,
        stretches=stretches,
        elsewhere=0.0,
    )
