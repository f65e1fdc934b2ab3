"""Define the three presets: their HMP and CAS, and how both are normalised into the final score (Eq. 6)."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from gateau_dagster.config.selection import Preset
from gateau_dagster.selection.statistics import Vector, finite, min_max, softmax


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
