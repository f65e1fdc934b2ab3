"""Check whether a preset still distinguishes samples, or its normalisation has degenerated."""

from dataclasses import dataclass

import numpy as np
import polars as pl

from gateau_dagster.config.selection import PRESETS, Preset, alpha_of
from gateau_dagster.selection.presets import TERM_NAMES
from gateau_dagster.selection.statistics import Vector, softmax, spearman

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
