"""Build the sections on a judge's other ratings and contaminated questions, as plain data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import polars as pl

from gateau_dagster.explanation.card import EvidenceCard, Snippet
from gateau_dagster.explanation.maps import SpanStrip
from gateau_dagster.features.evaluation.benchmark import PageFigure, PageSection, PageTable
from gateau_dagster.features.evaluation.contamination import touched
from gateau_dagster.features.evaluation.judging.characteristics import BEST, HIGHEST, LOWEST, WORST, mean_ratings
from gateau_dagster.features.evaluation.judging.judge_answers import tallies
from gateau_dagster.readable import plural

if TYPE_CHECKING:  # matplotlib is only needed for drawing
    from matplotlib.figure import Figure

_NOTABLE_BIAS = 0.2
_SHOWN = 20


@dataclass(frozen=True, kw_only=True)
class CandidateCard:
    """A candidate for a sample, with its texts shortened to their ends.

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
    # As GATEAU's figure 4, but the verdicts are a judge's and not people's.
    return PageFigure(
        name=f"pairwise/{benchmark}",
        draw=partial(_three_shares, benchmark, rows),
        alt=f"shares of turns won, tied and lost of {plural(len(rows), 'pair')}; the table below holds the same",
        caption="How to read it: a bar is a pair of models. Only what wins in both orders is a win.",
    )


def _ratings(means: pl.DataFrame) -> Figure:
    from gateau_dagster.features.evaluation.statistics.experiment_plots import ratings

    return ratings(means, lowest=LOWEST, highest=HIGHEST)


def _three_shares(benchmark: str, rows: Sequence[Mapping[str, Any]]) -> Figure:
    from gateau_dagster.features.evaluation.statistics.experiment_plots import three_shares
    from gateau_dagster.plotting import shortened

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
