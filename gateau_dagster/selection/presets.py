"""Define the three presets: their HMP and CAS, how both make the final score (Eq. 6), and whether it still tells.

A normalisation has degenerated if it no longer distinguishes samples.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from gateau_dagster.config.selection import PRESETS, Preset, SelectionConfig, alpha_of
from gateau_dagster.readable import number
from gateau_dagster.selection.statistics import Vector, finite, min_max, softmax, spearman


@dataclass(frozen=True, kw_only=True)
class Measures:
    """The models' measurements, one entry per sample of the data set D: float64 [|D|] each.

    probability_short, probability_long: mean over the response's tokens of their probability. `cas` (Eq. 5) and
    `far_gain` (scoring.segments) are NaN for samples with fewer than two segments.
    """

    perplexity_short: Vector
    perplexity_long: Vector
    probability_short: Vector
    probability_long: Vector
    cas: Vector
    far_gain: Vector


@dataclass(frozen=True, kw_only=True)
class PresetScores:
    """HMP and CAS by the preset's definition (TERM_NAMES), and their terms in the score: float64 [|D|] each.

    `cas` and `cas_term` are NaN if the sample has fewer than two segments. `cas_term` is in [0, 1].

    without_cas: replaces the whole second summand if CAS is null. With alpha·hmp_term it must not exceed the score of
    any other sample: -1 for hmp_term in [0, 1], -2 for hmp_term in [-1, 1].
    """

    hmp: Vector
    cas: Vector
    hmp_term: Vector
    cas_term: Vector
    without_cas: float = -1.0

    def score(self, alpha: float) -> Vector:
        """Return alpha · hmp_term + (1 - alpha) · cas_term, float64 [|D|] (Eq. 6).

        Samples whose CAS is null come after all others, in the order of their HMP.
        """
        second = np.where(np.isnan(self.cas_term), self.without_cas, (1 - alpha) * self.cas_term)
        return alpha * self.hmp_term + second


def paper(measures: Measures) -> PresetScores:
    """Compute Eqs. 2, 5 and 6 literally: softmax of each raw perplexity, their difference, and softmax of both
    terms.
    """
    return paper_terms(softmax(measures.perplexity_short) - softmax(measures.perplexity_long), measures.cas)


def official(measures: Measures) -> PresetScores:
    """Compute the authors' released ranking script: softmax(min-max PPL_A - min-max PPL_B), and CAS unchanged.

    The script weights the two with alpha and 1 - alpha like Eq. 6. But its first term is about 1/|D| and its second
    about 1, so alpha has little effect.
    """
    return official_terms(min_max(measures.perplexity_short) - min_max(measures.perplexity_long), measures.cas)


def robust(measures: Measures) -> PresetScores:
    """Compute our own preset, like method `far_gain`.

    The long-model gain, mean_t [p_B(y_t|c,x) - p_A(y_t|c within W,x)], takes the place of HMP: how much likelier
    theta_B finds a response token than theta_A does. The far-segment gain takes that of CAS: how much likelier the best
    tokens are given one far segment than given near text (scoring.segments). Both are probabilities and are not
    normalised by rank or softmax, so a sample's score depends only on that sample. Alpha is 0.5 by default: if theta_A
    is shown the whole context, the long-model gain is uninformative, and the paper's 0.8 would let it outweigh the
    far-segment gain.

    It uses probabilities, not their logarithms. A noisy response has no probability to lose, while chance changes its
    log-perplexity as much as a real dependency does. Attention is not used: its agreement with importance (Eq. 5) did
    not distinguish samples.

    All of this was chosen on the synthetic language (pairs and data of seeds 0 to 2). docs/evidence/ has the
    results on held-back seeds by kind, and on real text with two small pretrained models. The preset fails if theta_B
    does not know the answer itself, so that no far segment raises its probability: with two far facts to combine, and
    with order among many values. Rare words are its least safe negatives.
    """
    hmp = finite(measures.probability_long) - finite(measures.probability_short)
    return robust_terms(hmp, measures.far_gain)


def paper_terms(hmp: Vector, cas: Vector) -> PresetScores:
    """Return the terms of `paper`'s HMP and CAS in the score."""
    return PresetScores(hmp=hmp, cas=cas, hmp_term=softmax(hmp), cas_term=where_known(softmax, cas))


def official_terms(hmp: Vector, cas: Vector) -> PresetScores:
    """Return the terms of `official`'s HMP and CAS in the score."""
    return PresetScores(hmp=hmp, cas=cas, hmp_term=softmax(hmp), cas_term=cas)


def robust_terms(hmp: Vector, cas: Vector) -> PresetScores:
    """Return the terms of `robust`'s HMP and CAS in the score."""
    return PresetScores(hmp=hmp, cas=cas, hmp_term=hmp, cas_term=cas, without_cas=-2.0)


def where_known(normalise: Callable[[Vector], Vector], values: Vector) -> Vector:
    """Normalise the known `values` among themselves; NaN stays NaN."""
    known = ~np.isnan(values)
    result = np.full_like(values, np.nan)
    result[known] = normalise(values[known])
    return result


PRESET_FUNCTIONS: dict[Preset, Callable[[Measures], PresetScores]] = {
    "paper": paper,
    "official": official,
    "robust": robust,
}
# What a person reads for the columns `hmp` and `cas` of a preset; docs/explanation/glossary.md defines them.
TERM_NAMES: dict[Preset, tuple[str, str]] = {
    "paper": ("HMP", "CAS"),
    "official": ("HMP", "CAS"),
    "robust": ("long-model gain", "far-segment gain"),
}
# The same scores from HMP and CAS as stored in `combined_scores`.
PRESET_TERMS: dict[Preset, Callable[[Vector, Vector], PresetScores]] = {
    "paper": paper_terms,
    "official": official_terms,
    "robust": robust_terms,
}


RESOLUTION = 1e-6  # share of the range: closer values count as one
LEAST_DISTINCT = 0.5  # share of the samples
ONE_HOT = 0.5  # share of a softmax that is on one sample
DECIDES, IGNORED = 0.95, 0.8  # |Spearman| of the final score with a term


@dataclass(frozen=True, kw_only=True)
class Degeneration:
    """The composition of a preset's score over the `samples` with both terms."""

    preset: Preset
    samples: int
    distinct_hmp: int  # values that differ by more than RESOLUTION of the range
    distinct_score: int
    largest_softmax_share: float | None  # in softmax_D(PPL), the larger of the two models; `paper` only
    alpha: float  # weight of the first term; the rest is the second's
    spearman_hmp: float | None  # of the score with HMP; None if one is constant
    spearman_cas: float | None
    problems: tuple[str, ...]

    @property
    def degenerate(self) -> bool:
        """Return whether the preset should not be trusted on this data set."""
        return bool(self.problems)

    @property
    def sentence(self) -> str:
        """Return the verdict for a reader: the problems, or else how much each term decides the rank."""
        found = self.problems or (f"{self.distinct_score} distinct scores in {self.samples} samples", self.shares)
        return f"{self.preset}: " + "; ".join(found) + "."

    @property
    def shares(self) -> str:
        """Return which term decides the rank: both, one, or neither by itself."""
        hmp, cas = (abs(rho or 0.0) for rho in (self.spearman_hmp, self.spearman_cas))
        first, second = TERM_NAMES[self.preset]
        if min(hmp, cas) >= IGNORED:
            return "both terms count"
        if max(hmp, cas) < IGNORED:
            # Two unrelated terms of similar spread have about 0.7 each.
            correlations = f"{first} {hmp:.2f}, {second} {cas:.2f}"
            return f"neither term decides the rank alone (|Spearman| with the score: {correlations})"
        most, other, weight = (first, second, self.alpha) if hmp > cas else (second, first, 1 - self.alpha)
        verb = "decides" if max(hmp, cas) >= DECIDES else "leads"
        weights = "at equal weights" if weight == 0.5 else f"with the weight {weight:g}"
        follows = f"|Spearman| with the score {max(hmp, cas):.2f}; {other} {min(hmp, cas):.2f}"
        return f"{most} {verb} the rank ({follows}) {weights}"


def distinct(values: Vector) -> int:
    """Return how many values differ by more than RESOLUTION of their range."""
    if not values.size:
        return 0
    ordered = np.sort(values)
    return 1 + int((np.diff(ordered) > RESOLUTION * (ordered[-1] - ordered[0])).sum())


def check(scores: pl.DataFrame, *, preset: Preset, alpha: float) -> Degeneration:
    """Check one preset of tables.COMBINED_SCORES (with the columns that `combine` adds). Null CAS is left out."""
    known = scores.filter(pl.col(f"cas_{preset}").is_not_null())
    hmp, cas, score = (known[f"{name}_{preset}"].to_numpy() for name in ("hmp", "cas", "score"))
    share = None
    if preset == "paper" and scores.height:
        masses = [softmax(scores[f"perplexity_{model}"].to_numpy()).max() for model in ("short", "long")]
        share = float(max(masses))
    correlations = (spearman(score, hmp), spearman(score, cas)) if known.height else (None, None)
    result = Degeneration(
        preset=preset,
        samples=known.height,
        distinct_hmp=distinct(hmp),
        distinct_score=distinct(score),
        largest_softmax_share=share,
        alpha=alpha,
        spearman_hmp=correlations[0],
        spearman_cas=correlations[1],
        problems=(),
    )
    return Degeneration(**{**vars(result), "problems": tuple(_problems(result))})


def check_all(scores: pl.DataFrame, *, alpha: float | None) -> list[Degeneration]:
    """Return the `check` of every preset; with `alpha` None, each uses its own."""
    return [check(scores, preset=preset, alpha=alpha_of(preset, alpha)) for preset in PRESETS]


def _problems(found: Degeneration) -> list[str]:
    if found.samples < 2:
        return ["fewer than two samples have both terms"]
    problems = []
    values = f"{found.distinct_hmp} distinct values of {TERM_NAMES[found.preset][0]} in {found.samples} samples"
    share = found.largest_softmax_share
    if share is not None and share > ONE_HOT and found.samples > 2:
        problems.append(f"softmax over raw perplexities is one-hot, with {share:.0%} on one sample: {values}")
    elif found.alpha > 0 and found.distinct_hmp < LEAST_DISTINCT * found.samples:
        problems.append(values)
    if found.distinct_score < LEAST_DISTINCT * found.samples:
        problems.append(f"{found.distinct_score} distinct scores in {found.samples} samples")
    problems += _one_sided(found)
    return problems


def _one_sided(found: Degeneration) -> list[str]:
    """Return a sentence if one term decides the rank although the other has more than half of the weight.

    With equal weights that is not a fault: of two terms in one unit, the one that spreads more decides; `shares` names
    it.
    """
    first, second = zip(
        TERM_NAMES[found.preset],
        (found.alpha, 1 - found.alpha),
        (found.spearman_hmp, found.spearman_cas),
        strict=True,
    )
    for (name, weight, own), (other, _, theirs) in ((first, second), (second, first)):
        if weight > 0.5 and abs(own or 0.0) < IGNORED and abs(theirs or 0.0) >= DECIDES:
            return [
                f"{other} decides the rank (Spearman {theirs or 0.0:.2f} with the score) although {name} "
                f"({own or 0.0:.2f}) has the weight {weight:g}"
            ]
    return []


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
    columns = (scores[f"{kind}_{preset}"].fill_null(float("nan")).to_numpy() for kind in ("hmp", "cas"))
    hmp, cas = (column.astype(np.float64, copy=False) for column in columns)
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
