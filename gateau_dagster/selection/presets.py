"""The three presets: what HMP and CAS are, and how the two are normalised into the final score (Eq. 6)."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from gateau_dagster.config.selection import Preset
from gateau_dagster.selection.statistics import Vector, finite, min_max, softmax


@dataclass(frozen=True, kw_only=True)
class Measures:
    """What the models found, one entry per sample of the data set D: float64 [|D|] each.

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
    """HMP and CAS as the preset defines them, and as they enter the score: float64 [|D|] each.

    `cas` and `cas_term` are NaN where the sample has fewer than two segments. `cas_term` lies in [0, 1].

    without_cas: stands for the whole second summand where CAS is null. With alpha·hmp_term it must not exceed the score
        of any other sample: -1 where hmp_term lies in [0, 1], -2 where it lies in [-1, 1].
    """

    hmp: Vector
    cas: Vector
    hmp_term: Vector
    cas_term: Vector
    without_cas: float = -1.0

    def score(self, alpha: float) -> Vector:
        """alpha · hmp_term + (1 - alpha) · cas_term, float64 [|D|] (Eq. 6).

        Samples whose CAS is null come after all others, in the order of their HMP.
        """
        second = np.where(np.isnan(self.cas_term), self.without_cas, (1 - alpha) * self.cas_term)
        return alpha * self.hmp_term + second


def paper(measures: Measures) -> PresetScores:
    """Eqs. 2, 5 and 6 to the letter: softmax of each raw perplexity, their difference, and softmax of both terms."""
    return paper_terms(softmax(measures.perplexity_short) - softmax(measures.perplexity_long), measures.cas)


def official(measures: Measures) -> PresetScores:
    """The authors' released ranking script: softmax(min-max PPL_A - min-max PPL_B), and CAS as it is.

    The script weights the two with alpha and 1 - alpha like Eq. 6; but its first term is about 1/|D| and its second
    about 1, so that alpha hardly matters.
    """
    return official_terms(min_max(measures.perplexity_short) - min_max(measures.perplexity_long), measures.cas)


def robust(measures: Measures) -> PresetScores:
    """Ours, as method `far_gain`. HMP is HMPp = mean_t [p_B(y_t|c,x) - p_A(y_t|c within W,x)], how much likelier
    theta_B finds a response token than theta_A does; CAS is FG, how much likelier the best tokens are from one far
    segment than from near text (scoring.segments). Both are probabilities and enter as they are: no rank, no softmax,
    so that a sample's score depends on that sample alone. Alpha is 0.5 by default: where theta_A is shown the whole
    context, HMPp tells little, and the paper's 0.8 lets it outweigh FG.

    Probabilities and not their logarithms: a noisy response has none to lose, while its log-perplexity differs by
    chance as much as a real dependency's. Attention does not enter: its agreement with importance (Eq. 5) did not tell
    samples apart. All of this was chosen on the synthetic language (pairs and data of seeds 0 to 2);
    benchmarks/README.md has the figures on held-back seeds, kind by kind. It fails where theta_B does not know the
    answer itself, so that no far segment raises its probability: there, two far facts that have to be combined, and
    order among many values. Rare words are its least safe negatives. The same page has it on real text with two small
    pretrained models.
    """
    hmp = finite(measures.probability_long) - finite(measures.probability_short)
    return robust_terms(hmp, measures.far_gain)


def paper_terms(hmp: Vector, cas: Vector) -> PresetScores:
    """How `paper`'s HMP and CAS enter the score."""
    return PresetScores(hmp=hmp, cas=cas, hmp_term=softmax(hmp), cas_term=where_known(softmax, cas))


def official_terms(hmp: Vector, cas: Vector) -> PresetScores:
    """How `official`'s HMP and CAS enter the score."""
    return PresetScores(hmp=hmp, cas=cas, hmp_term=softmax(hmp), cas_term=cas)


def robust_terms(hmp: Vector, cas: Vector) -> PresetScores:
    """How `robust`'s HMP and CAS enter the score."""
    return PresetScores(hmp=hmp, cas=cas, hmp_term=hmp, cas_term=cas, without_cas=-2.0)


def where_known(normalise: Callable[[Vector], Vector], values: Vector) -> Vector:
    """`values` normalised among themselves where they are known; NaN stays NaN."""
    known = ~np.isnan(values)
    result = np.full_like(values, np.nan)
    result[known] = normalise(values[known])
    return result


PRESET_FUNCTIONS: dict[Preset, Callable[[Measures], PresetScores]] = {
    "paper": paper,
    "official": official,
    "robust": robust,
}
# The same from HMP and CAS as `combined_scores` stores them.
PRESET_TERMS: dict[Preset, Callable[[Vector, Vector], PresetScores]] = {
    "paper": paper_terms,
    "official": official_terms,
    "robust": robust_terms,
}
