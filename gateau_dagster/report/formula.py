"""Decompose the score of the preset that was used: the parts of each term, and what the term adds for a sample."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from gateau_dagster.config import Preset, SelectionConfig
from gateau_dagster.readable import number
from gateau_dagster.selection.presets import PRESET_TERMS, TERM_NAMES
from gateau_dagster.selection.statistics import Vector

Named = tuple[str, float | None]

_PERPLEXITIES = (("perplexity_short", "perplexity, short model"), ("perplexity_long", "perplexity, long model"))
_PROBABILITIES = (
    ("probability_long", "mean probability, long model"),
    ("probability_short", "mean probability, short model"),
)


@dataclass(frozen=True, kw_only=True)
class TermForm:
    """A term as a preset defines it.

    name: as it enters the score.
    measure: its name before normalisation, if different.
    made_of: columns of the row that the measure is computed from, with their names.
    """

    name: str
    measure: str = ""
    made_of: tuple[tuple[str, str], ...] = ()


# The two terms of each preset (selection.presets).
FORMS: dict[Preset, tuple[TermForm, TermForm]] = {
    "paper": (
        TermForm(name="softmax(HMP)", measure="HMP", made_of=_PERPLEXITIES),
        TermForm(name="softmax(CAS)", measure="CAS"),
    ),
    "official": (
        TermForm(name="softmax(HMP)", measure="HMP", made_of=_PERPLEXITIES),
        TermForm(name="CAS"),
    ),
    "robust": (
        TermForm(name=TERM_NAMES["robust"][0], made_of=_PROBABILITIES),
        TermForm(name=TERM_NAMES["robust"][1]),
    ),
}


@dataclass(frozen=True, kw_only=True)
class Term:
    """One summand of a sample's score: `weight` · `value`.

    value: as it enters the score; None if the sample has none (the second term, below two segments).
    made_of: by name, the measure before normalisation, and the columns that it is computed from.
    """

    name: str
    weight: float
    value: float | None
    made_of: tuple[Named, ...]


@dataclass(frozen=True, kw_only=True)
class ScoreTerms:
    """A sample's score as the sum of its two terms. `instead`: replaces a second summand that the sample lacks."""

    score: float
    first: Term
    second: Term
    instead: float

    @property
    def sum(self) -> str:
        """Return the sum as `0.5 · 0.4210 + 0.5 · 0.2000 = 0.3105`."""
        second = _product(self.second) if self.second.value is not None else number(self.instead)
        return f"{_product(self.first)} + {second} = {number(self.score)}"


def with_terms(scores: pl.DataFrame, preset: Preset) -> pl.DataFrame:
    """Return `scores` with `hmp_term`, `cas_term` f64: HMP and CAS as they enter the preset's score over this data set.

    Args:
        scores: all rows of combined_scores, since some normalisations need the whole data set. `cas_term` is null where
            CAS is.
        preset: selects the columns `hmp_<preset>` and `cas_<preset>`.
    """
    hmp, cas = (_vector(scores, f"{kind}_{preset}") for kind in ("hmp", "cas"))
    terms = PRESET_TERMS[preset](hmp, cas)
    return scores.with_columns(
        pl.Series("hmp_term", terms.hmp_term, dtype=pl.Float64),
        pl.Series("cas_term", terms.cas_term, dtype=pl.Float64, nan_to_null=True),
        pl.lit(terms.without_cas).alias("without_cas"),
    )


def terms(row: Mapping[str, Any], selection: SelectionConfig) -> ScoreTerms:
    """Return the terms of one row of `with_terms` under the preset that GATEAU selects by."""
    preset, alpha = selection.preset, selection.alphas[selection.preset]
    first, second = FORMS[preset]
    return ScoreTerms(
        score=row[f"score_{preset}"],
        first=_term(first, alpha, row["hmp_term"], row[f"hmp_{preset}"], row),
        second=_term(second, 1 - alpha, row["cas_term"], row[f"cas_{preset}"], row),
        instead=row["without_cas"],
    )


def _term(form: TermForm, weight: float, value: float | None, measure: float | None, row: Mapping[str, Any]) -> Term:
    made_of = [(form.measure, measure)] if form.measure else []
    made_of += [(name, row[column]) for column, name in form.made_of]
    return Term(name=form.name, weight=weight, value=value, made_of=tuple(made_of))


def _product(term: Term) -> str:
    return f"{term.weight:.4g} · {number(term.value)}"


def _vector(scores: pl.DataFrame, column: str) -> Vector:
    return scores[column].fill_null(float("nan")).to_numpy().astype(np.float64, copy=False)
