"""The three presets: how HMP and CAS are computed and normalised into the final score (Eq. 6)."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from gateau_dagster.config.selection import Preset
from gateau_dagster.selection.normalise import Vector, finite, min_max, rank_share, softmax


@dataclass(frozen=True, kw_only=True)
class Measures:
    """What the models found, one entry per sample of the data set D: float64 [|D|] each.

    `cas` (Eq. 5) and `far_gain` are NaN for samples with fewer than two segments.
    """

    perplexity_short: Vector
    perplexity_long: Vector
    cas: Vector
    far_gain: Vector


@dataclass(frozen=True, kw_only=True)
class PresetScores:
    """HMP and CAS as the preset defines them, and as they enter the score: float64 [|D|] each.

    `cas` and `cas_term` are NaN where the sample has fewer than two segments. Both terms lie in [0, 1].
    """

    hmp: Vector
    cas: Vector
    hmp_term: Vector
    cas_term: Vector

    def score(self, alpha: float) -> Vector:
        """alpha · hmp_term + (1 - alpha) · cas_term, float64 [|D|] (Eq. 6).

        Where CAS is null, -1 stands for the whole second summand: such samples come after all others, in the order
        of their HMP.
        """
        return alpha * self.hmp_term + np.where(np.isnan(self.cas_term), -1.0, (1 - alpha) * self.cas_term)


def paper(measures: Measures) -> PresetScores:
    """Eqs. 2, 5 and 6 to the letter: softmax of each raw perplexity, their difference, and softmax of both terms."""
    hmp = softmax(measures.perplexity_short) - softmax(measures.perplexity_long)
    return PresetScores(hmp=hmp, cas=measures.cas, hmp_term=softmax(hmp), cas_term=_where_known(softmax, measures.cas))


def official(measures: Measures) -> PresetScores:
    """The authors' released ranking script: softmax(min-max PPL_A - min-max PPL_B), and CAS as it is.

    The script weights the two with alpha and 1 - alpha like Eq. 6; but its first term is about 1/|D| and its second
    about 1, so that alpha hardly matters.
    """
    hmp = min_max(measures.perplexity_short) - min_max(measures.perplexity_long)
    return PresetScores(hmp=hmp, cas=measures.cas, hmp_term=softmax(hmp), cas_term=measures.cas)


def robust(measures: Measures) -> PresetScores:
    """Ours. HMP is how much likelier theta_B finds a response token than theta_A does, 1/PPL_B - 1/PPL_A; CAS is how
    much likelier theta_B finds it from the best far segment alone than from the best near one (`far_gain`). Each enters
    as its rank's share, so that alpha weighs them alike on any data.

    Probabilities and not their logarithms: a noisy response has none to lose, while its log-perplexity differs by
    chance as much as a real dependency's. Chosen on the synthetic language only (benchmarks/selection_presets.py),
    whose answers are single facts; multi-hop answers, paraphrase and real language models are untested. The second
    term ignores attention, whose agreement with importance (Eq. 5) did not tell the kinds apart there.
    """
    hmp = 1.0 / finite(measures.perplexity_long) - 1.0 / finite(measures.perplexity_short)
    gain = measures.far_gain
    return PresetScores(hmp=hmp, cas=gain, hmp_term=rank_share(hmp), cas_term=_where_known(rank_share, gain))


def _where_known(normalise: Callable[[Vector], Vector], values: Vector) -> Vector:
    known = ~np.isnan(values)
    result = np.full_like(values, np.nan)
    result[known] = normalise(values[known])
    return result


PRESET_FUNCTIONS: dict[Preset, Callable[[Measures], PresetScores]] = {
    "paper": paper,
    "official": official,
    "robust": robust,
}
