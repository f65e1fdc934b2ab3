"""Forecast whether training on a choice of samples beats training on as many random ones. No model runs.

The loss on a class of samples falls by a constant slope with each doubling of the training samples of that class. So,
in each class, a choice changes the loss against a random one by slope · log2(its samples / random's samples). With
equal slopes, the best choice gains slope · KL(use ‖ pool) over random, where `use` and `pool` are shares of classes.
This gain is zero if the pool has the shares of the use. It is also zero without a far deficit: if the model already
uses far text, so that the whole text makes an answer as likely as only the best far segment does.

The forecast counts samples. Tokens that depend on far text predict no better, given an offset
(docs/evidence/effect.md).

`selection.evidence` finds the classes. On real text it misses nearly half of the samples that need far text, so shares
are corrected for these misses. If labels of the samples are known, they give the number of misses.
"""

# What it does: it counts the far samples of the choice and of random choices, corrects both counts for the errors of
# `dependency`, and turns their ratio into a change of the loss by a slope. The verdict then applies thresholds.
#
# What it costs: about a second, and no model. So rule `auto` and every variant of an experiment can afford it.
#
# How far to trust it: the slope is a prior with a standard deviation above its mean. The sign of a gain is better
# known than its size. The counts are Monte Carlo draws, because both the rates of the test and the slope are
# uncertain, and the change is not linear in either.
#
# When another way is better: a choice that costs days of training deserves trained models. A few small ones, on parts
# of the choice and of random samples (docs/how-to/test-selection.md), measure the slope that is assumed here. Labels
# of sources (`selection.ground_truth`) replace the assumed errors of `dependency` by counted ones.

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import polars as pl

from gateau_dagster.config.selection import DEFAULT_FRACTION, Rule, RuleConfig
from gateau_dagster.readable import fixed, percent
from gateau_dagster.selection.evidence import FAR
from gateau_dagster.selection.mix import LEAST_USE, shown_classes
from gateau_dagster.selection.rules import chosen_ids, scored
from gateau_dagster.selection.statistics import Vector
from gateau_dagster.selection.token_budget import countable

SelectionVerdict = Literal["pays", "level", "do_not_select"]
VERDICTS: dict[SelectionVerdict, str] = {
    "pays": "likely pays",
    "level": "level, train on clean random samples",
    "do_not_select": "do not select",
}
"""Each verdict in words."""

# Raise it when rule auto decides otherwise from the same tables.
CODE_VERSION = "2"

# Thresholds of the verdict. They are estimates from the literature on selection. docs/evidence/effect.md tests them on
# a synthetic language. There, rule mix also gains below those of deficit, mismatch and enrichment, so they are
# conservative.
LEAST_DEFICIT = 0.05
"""Smallest lower end of the far deficit beyond its near control, a probability. SmolLM2-135M has a deficit of 0.08 at
contexts of 512 tokens, where more far samples gained nothing in training, and of 0.23 at 2,048."""
LEAST_MISMATCH = 0.3
"""Smallest mismatch of use and pool in bits. With it, a slope of 0.04 gains at most 0.012 NLL over the use."""
LEAST_ENRICHMENT = 3.0
"""Smallest ratio of far samples in the choice to those in as many random samples: 1.6 doublings."""
LEAST_SUPPLY = 0.25
"""Smallest ratio of the far samples in the pool to those that the use needs for this amount. It is from
docs/evidence/effect.md: with ratios of 0.26 to 0.35, models recalled 0.042 (0.006 to 0.077) more far facts than
with random samples."""
LEAST_COVERAGE = 0.8
"""Smallest coverage of responses by the choice, relative to random samples. The best 42 % of real samples by score saw
8 of 19 kinds of response, and a model trained on them lost 0.5 NLL on the kinds that it never saw."""
MOST_BEYOND_USE = 0.05
"""Largest excess of the share of far samples over that of the use, since quotas are filled with whole samples."""
MOSTLY_FAR = 0.9
"""The share of far samples above which a choice without short conversations causes a warning."""

# Far samples that were recognised, and other samples that were not called far, each with the number of all of them, for
# SmolLM2-135M and Gemma-3-270M, docs/evidence/figures/real_dependencies.json (`dependency_counts` of
# docs/evidence/real_text.md).
FOUND = ((702, 1260), (692, 1260))
SPARED = ((1396, 1400), (1391, 1400))
# Each of these samples was counted at four sizes of context and window, so a quarter of the counts is independent.
_SIZES = 4

SLOPE, SLOPE_DEVIATION = 0.04, 0.05
"""Prior of every slope, NLL per doubling: mean and standard deviation. Experiments on real text
(docs/evidence/experiment.md) gave 0.00 and 0.06 for far samples, and 0.05 to 0.12 for others."""
PRIOR_GROUNDS = f"slope {SLOPE:g} ± {SLOPE_DEVIATION:g} NLL per doubling, known from experiments with one small model"

# These rules choose the best samples, whatever the samples depend on.
_BEST_ONLY: tuple[Rule, ...] = ("top", "token_budget")
_DRAWS = 2000
_RANDOM_DRAWS = 100
_BLOCKS = 1000
_TAIL = 0.025


@dataclass(frozen=True, kw_only=True)
class Estimated:
    """An estimate and the ends of its 95 % interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, kw_only=True)
class Slope:
    """The amount by which a doubling of a class's samples lowers its loss, NLL: mean and standard deviation."""

    mean: float = SLOPE
    deviation: float = SLOPE_DEVIATION


@dataclass(frozen=True, kw_only=True)
class Slopes:
    """The slopes of far samples and of all others, and their source in words."""

    far: Slope = Slope()
    rest: Slope = Slope()
    grounds: str = PRIOR_GROUNDS


PRIOR = Slopes()


@dataclass(frozen=True, kw_only=True)
class Deficit:
    """The far deficit and its near control, probabilities, from the tokens that depend on far and on near text.

    far: the mean of F − p_B over the tokens with F − N ≥ DEPENDENT. F and N are the largest probabilities of a token
    given one far segment, and given a near segment or none. p_B is its probability given the whole text. F is a
    maximum, so chance raises it. near: the same for near text, the mean of N − p_B over the tokens with N − max(no
    context, F) ≥ DEPENDENT. Chance raises N in the same way. beyond: far minus near. Each is None without such tokens.
    far_tokens, near_tokens: the numbers of these tokens. far_samples: the number of samples with such far tokens.
    """

    far: Estimated | None
    near: Estimated | None
    beyond: Estimated | None
    far_tokens: int
    near_tokens: int
    far_samples: int


@dataclass(frozen=True, kw_only=True)
class Forecast:
    """The figures of a choice before a model is trained on it.

    samples: the number of candidates with a score, counting each text once; unknown: those without a class.
    seen: the number of candidates that show far text. far: the share that needs it, corrected, or exact if `far_known`.
    far_known: whether the sources of the samples give `far` (`selection.ground_truth`).
    use: the share of far text in the use; use_given: whether it is configured.
    mismatch: KL(use ‖ pool) in bits. deficit: that of theta_B, see Deficit. trains_other: whether another model is
    trained.
    unit: the unit in which random choices are of equal size: `samples`, or a budget's; amount: the size of the choice.
    chosen, chosen_far: the number of chosen samples, and of those that show far text.
    chosen_share: the share of far samples in the choice, in its `unit`. random_far: the far samples in a random choice.
    enrichment: chosen_far / random_far; None if random choices hold no far sample.
    supply: the far samples of the pool divided by those that the use needs for this amount.
    strata: the name of the strata that coverage counts, without unpredictable samples, which `mix` and `clean` leave
    out. covered, covered_top, covered_random: the share of strata with a sample of this choice, of an equal amount of
    the best samples, and of random ones (mean).
    far_change, rest_change, use_change: the change of the loss against random samples, NLL; negative is better.
    grounds: the source of the slopes. verdict, reasons: see `verdict`.
    """

    samples: int
    unknown: int
    seen: int
    far: Estimated
    far_known: bool
    use: float
    use_given: bool
    mismatch: Estimated
    deficit: Deficit
    trains_other: bool
    unit: Literal["samples", "tokens", "response tokens"]
    amount: int
    chosen: int
    chosen_far: int
    chosen_share: float
    random_far: Estimated
    enrichment: float | None
    supply: float
    strata: str
    covered: float
    covered_top: float
    covered_random: float
    far_change: Estimated
    rest_change: Estimated
    use_change: Estimated
    grounds: str
    verdict: SelectionVerdict = "level"
    reasons: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class _Rates:
    """Draws of the pool's far share, and of the test's sensitivity and specificity: float64 [draws] each."""

    far: Vector
    sensitivity: Vector
    specificity: Vector

    def needing(self, samples: float, seen: float) -> Vector:
        """Return the number of `samples` that need far text, if `seen` of them show it: float64 [draws]."""
        right = self.sensitivity * self.far
        wrong, missed = (1 - self.specificity) * (1 - self.far), (1 - self.sensitivity) * self.far
        rest = self.specificity * (1 - self.far)
        of_seen = np.divide(right, right + wrong, out=np.zeros_like(right), where=right + wrong > 0)
        of_rest = np.divide(missed, missed + rest, out=np.zeros_like(right), where=missed + rest > 0)
        return seen * of_seen + (samples - seen) * of_rest


def corrected_share(seen: int, total: int, *, seed: int = 0) -> Estimated:
    """Return the share of samples that need far text, in [0, 1], from those that show it (Rogan and Gladen, 1978).

    It is (seen / total + specificity − 1) / (sensitivity + specificity − 1), clipped. The interval covers the sampling
    of the pool, and the uncertainty of sensitivity and specificity. Both were measured with two small models on
    responses of a few to some tens of tokens. On meetings with longer responses the sensitivity was higher
    (docs/evidence/qmsum.md), so the share may be too high.

    Args:
        seen: samples whose `dependency` is far.
        total: samples with a `dependency`, at least 1.
    """
    return _estimated(_point_rates(seen, total).far.item(), _rates(seen, total, seed).far)


def far_use(samples: pl.DataFrame, rule: RuleConfig, counted: _Rates | None = None) -> float | None:
    """Return the share of far text in the use, in [0, 1]; None if `selection.use` does not configure it.

    The share is that of the samples from the sources in `selection.use`, corrected as in `corrected_share`. If the
    `counted` rates of the test on labelled samples are better than chance, they correct it instead.

    `samples`: see `forecast`.

    Raises:
        GateauError: all of these samples lack a dependency.
    """
    if rule.use is None:
        return None
    if isinstance(rule.use, dict):
        return rule.use["far"]
    classes = shown_classes(samples, rule)
    seen, total = int((classes == "far").sum()), classes.len()
    if counted is not None and (counted.sensitivity + counted.specificity).item() > 1:
        return _share(seen, total, counted.sensitivity, counted.specificity).item()
    return corrected_share(seen, total).value


def _point_rates(seen: int, total: int) -> _Rates:
    # One draw, from the counts of both models: those of `_rates` are distributed around it.
    found, spared = np.sum(FOUND, axis=0), np.sum(SPARED, axis=0)
    sensitivity, specificity = found[:1] / found[1], spared[:1] / spared[1]
    return _Rates(far=_share(seen, total, sensitivity, specificity), sensitivity=sensitivity, specificity=specificity)


def _counted_rates(samples: pl.DataFrame, ground_truth: Collection[str]) -> _Rates | None:
    """Return the rates by the labels of these samples, as one draw; None if the labels do not separate them.

    `samples`: `source`, and `far`, whether a sample shows far text.
    """
    needs, shows = samples["source"].is_in([*ground_truth]).fill_null(False), samples["far"]
    if not needs.any() or needs.all():
        return None
    shares = needs.mean(), shows.filter(needs).mean(), (~shows.filter(~needs)).mean()
    far, sensitivity, specificity = (np.array([share], dtype=np.float64) for share in shares)
    return _Rates(far=far, sensitivity=sensitivity, specificity=specificity)


def _share(seen: Vector | float, total: float, sensitivity: Vector | float, specificity: Vector | float) -> Vector:
    return np.clip((np.asarray(seen) / total + specificity - 1) / (np.asarray(sensitivity) + specificity - 1), 0, 1)


def _rates(seen: int, total: int, seed: int) -> _Rates:
    """Return draws; each is from one of the models, with a Beta distribution by Jeffreys' prior for each share."""
    assert 0 <= seen <= total and total > 0
    rng = np.random.default_rng(seed)
    model = rng.integers(len(FOUND), size=_DRAWS)
    # Jeffreys' prior keeps the draws inside (0, 1), also where all or none were found. A normal interval of so large a
    # share would reach above 1.
    sensitivity, specificity = (
        rng.beta(counts[model, 0] / _SIZES + 0.5, (counts[model, 1] - counts[model, 0]) / _SIZES + 0.5)
        for counts in (np.asarray(FOUND, dtype=np.float64), np.asarray(SPARED, dtype=np.float64))
    )
    shown = rng.beta(seen + 0.5, total - seen + 0.5, size=_DRAWS)
    return _Rates(far=_share(shown, 1, sensitivity, specificity), sensitivity=sensitivity, specificity=specificity)


def _estimated(value: float, draws: Vector) -> Estimated:
    # The interval always includes the estimate.
    low, high = np.quantile(draws, (_TAIL, 1 - _TAIL), method="linear" if np.isfinite(draws).all() else "nearest")
    return Estimated(value=float(value), low=float(min(value, low)), high=float(max(value, high)))


def mismatch(use: float, pool: float) -> float:
    """Return KL(use ‖ pool) in bits over the classes far and rest; `use` and `pool` are shares of far text.

    The divergence is 0 if they are equal, and infinite if the pool lacks a class of the use. With equal slopes, the
    best choice gains slope · mismatch over random samples.
    """
    parts = ((use, pool), (1 - use, 1 - pool))
    return sum(math.inf if have == 0 else want * math.log2(want / have) for want, have in parts if want > 0)


def far_deficit(sums: pl.DataFrame, *, seed: int = 0) -> Deficit:
    """Return the far deficit with its near control. `sums`: from `token_sums`.

    Intervals resample the samples, or groups of them above 1,000. The interval of a single sample is the whole range of
    a difference of probabilities.
    """
    # Samples are resampled, not tokens: the tokens of one response depend on the same text, so they are not
    # independent.
    held = sums.filter((pl.col("far_tokens") > 0) | (pl.col("near_tokens") > 0))
    table = held.select("far_sum", "far_tokens", "near_sum", "near_tokens").to_numpy().astype(np.float64)
    rng = np.random.default_rng(seed)
    if len(table) > _BLOCKS:  # sums of equal parts are as independent as samples
        block = rng.permutation(len(table)) % _BLOCKS
        table = np.stack([np.bincount(block, weights=column, minlength=_BLOCKS) for column in table.T], axis=1)
    count = max(1, len(table))
    drawn = rng.multinomial(count, np.full(count, 1 / count), size=_DRAWS)[:, : len(table)] @ table
    whole = table.sum(axis=0)
    with np.errstate(divide="ignore", invalid="ignore"):
        far, near = whole[0] / whole[1], whole[2] / whole[3]
        far_draws, near_draws = drawn[:, 0] / drawn[:, 1], drawn[:, 2] / drawn[:, 3]
    far_samples = held.filter(pl.col("far_tokens") > 0).height
    alone, near_alone = far_samples < 2, held.filter(pl.col("near_tokens") > 0).height < 2
    return Deficit(
        far=_resampled(far, far_draws, alone),
        near=_resampled(near, near_draws, near_alone),
        beyond=_resampled(far - near, far_draws - near_draws, alone or near_alone),
        far_tokens=int(whole[1]),
        near_tokens=int(whole[3]),
        far_samples=far_samples,
    )


def _resampled(value: float, draws: Vector, alone: bool) -> Estimated | None:
    """Return an estimate with the interval of its draws; None for NaN. `alone`: whether it is from one sample."""
    if math.isnan(value):
        return None
    if alone:
        return Estimated(value=float(value), low=-1.0, high=1.0)
    return _estimated(float(value), draws[~np.isnan(draws)])


def fitted_slope(samples: Sequence[float], losses: Sequence[float]) -> Slope | None:
    """Return the slope of a class from trained models, combined with the prior by precision; None if it is undefined.

    The losses of n models are regressed on log2(samples + 1). Student's t with n − 2 degrees of freedom widens the
    standard error. The slope needs three models, two of which differ in their number of samples.

    Args:
        samples: for each model, the number of training samples of the class.
        losses: for each model, the mean loss on questions of the class, NLL.
    """
    from scipy.special import stdtrit  # slow to import

    x, y = np.log2(np.asarray(samples, dtype=np.float64) + 1), np.asarray(losses, dtype=np.float64)
    if len(x) < 3 or np.ptp(x) == 0:
        return None
    spread, freedom = float(((x - x.mean()) ** 2).sum()), len(x) - 2
    slope = float(((x - x.mean()) * (y - y.mean())).sum()) / spread
    residual = float(((y - y.mean() - slope * (x - x.mean())) ** 2).sum())
    # With three models there is one degree of freedom, whose t quantile is 12.7 instead of 1.96. The prior is normal,
    # so the standard error is widened before the two are combined.
    widened = float(stdtrit(freedom, 1 - _TAIL) / stdtrit(1e9, 1 - _TAIL))
    error = max(1e-6, widened * math.sqrt(residual / freedom / spread))
    weight, prior = error**-2, SLOPE_DEVIATION**-2
    return Slope(mean=(prior * SLOPE - weight * slope) / (prior + weight), deviation=(prior + weight) ** -0.5)


def forecast(
    samples: pl.DataFrame,
    rule: RuleConfig,
    sums: pl.DataFrame,
    *,
    chosen: Collection[str] | None = None,
    use: float | None = None,
    slopes: Slopes = PRIOR,
    trains_other: bool = False,
    ground_truth: Collection[str] = (),
    seed: int = 0,
) -> Forecast:
    """Return the forecast for a choice among `samples`, against random choices of as many samples or tokens.

    It takes about a second for 200,000 samples. It runs no model and reads only its arguments.

    Args:
        samples: candidates as for `rules.chosen_ids`, with `dependency` str (null: unknown) and `response_tokens` int;
            with `cluster` int, coverage is that of these clusters, else of sources and quarters of response length.
            `tokens` may be missing where the rule has no budget.
        rule: the rule that chooses, with its amount.
        sums: from `token_sums`, of any samples.
        chosen: the ids that the rule chose; None: the rule chooses now.
        use: the share of far text in the use; None: that of `rule.use`, else the larger of LEAST_USE and the pool's.
        slopes: the changes of the loss for a doubling of a class's samples.
        trains_other: whether another model than theta_B is trained, so that its far deficit is unknown.
        ground_truth: the values of `source` whose samples need far text. If the samples with a dependency are of these
            and of other sources, their labels give the share that needs far text and the misses of `dependency`.

    Raises:
        GateauError: the rule cannot choose from the data (see `chosen_ids`).
    """
    ids = chosen_ids(samples, rule) if chosen is None else chosen
    unit = "samples" if rule.budget is None else rule.budget_unit
    shows_use = pl.col("source").is_in(rule.use_sources)
    pool = samples.filter(~shows_use, scored() if unit == "samples" else countable()).with_columns(
        far=pl.col("dependency").is_in(FAR).fill_null(False), picked=pl.col("sample_id").is_in([*ids])
    )
    if rule.duplicates == "one":
        pool = pool.sort(~pl.col("picked"), "rank", "sample_id").unique("digest", keep="first", maintain_order=True)
    pool = pool.sort("rank", "sample_id")
    known, seen = pool["dependency"].count(), int(pool["far"].sum())
    # Labels of the user's data are better than rates measured on other text, so they replace these where they exist.
    counted = _counted_rates(pool.filter(pl.col("dependency").is_not_null()), ground_truth)
    use = far_use(samples, rule, counted) if use is None else use
    rates = counted or _rates(seen, max(1, known), seed)
    point = counted or _point_rates(seen, max(1, known))
    far = _estimated(point.far.item(), rates.far)
    share = max(LEAST_USE, far.value) if use is None else use
    # Random choices are as large as this one in the unit of the rule. With a budget in tokens, a choice of long samples
    # has fewer of them.
    cost = pool["tokens"].to_numpy().astype(np.float64) if unit != "samples" else np.ones(pool.height)
    picked, is_far = pool["picked"].to_numpy(), pool["far"].to_numpy()
    amount, count, count_far = float(cost[picked].sum()), int(picked.sum()), int(is_far[picked].sum())
    names, strata = _strata(pool)
    # `mix` and `clean` leave unpredictable samples out on purpose. Counted as strata, they would lower the coverage of
    # every good choice.
    strata = np.where(pool["dependency"].eq_missing("unpredictable"), -1, strata)
    drawn = _random_draws(cost, amount, is_far, strata, seed)
    top = np.cumsum(cost) <= amount
    random_count, random_far = drawn[:, 0].mean(), drawn[:, 1].mean()
    # Another stream than that of the rates, so that rates and slopes are independent.
    rng = np.random.default_rng([seed, 1])
    slope_draws = [rng.normal(slope.mean, slope.deviation, size=_DRAWS) for slope in (slopes.far, slopes.rest)]
    changes = [
        _changes(each, (count, count_far), (random_count, random_far), share, *slope)
        for each, slope in (
            (point, [np.array([slopes.far.mean]), np.array([slopes.rest.mean])]),
            (rates, slope_draws),
        )
    ]
    far_change, rest_change, use_change = (
        _estimated(value.item(), draws) for value, draws in zip(*changes, strict=True)
    )
    found = Forecast(
        samples=pool.height,
        unknown=pool.height - known,
        seen=seen,
        far=far,
        far_known=counted is not None,
        use=share,
        use_given=use is not None,
        mismatch=_estimated(mismatch(share, far.value), np.array([mismatch(share, each) for each in rates.far])),
        deficit=far_deficit(sums, seed=seed),
        trains_other=trains_other,
        unit=unit,
        amount=round(amount),
        chosen=count,
        chosen_far=count_far,
        chosen_share=float(cost[picked & is_far].sum() / amount) if amount else 0.0,
        random_far=_estimated(random_far, drawn[:, 1]),
        enrichment=count_far / float(random_far) if random_far else None,
        supply=float(cost[is_far].sum() / (share * amount)) if share * amount else math.inf,
        strata=names,
        covered=_covered(strata, picked),
        covered_top=_covered(strata, top),
        covered_random=float(drawn[:, 2].mean()),
        far_change=far_change,
        rest_change=rest_change,
        use_change=use_change,
        grounds=slopes.grounds,
    )
    word, reasons = verdict(found)
    return replace(found, verdict=word, reasons=reasons)


def _strata(pool: pl.DataFrame) -> tuple[str, np.ndarray]:
    """Return a name for the strata, and the stratum of each sample, -1 if it has none: int [n]."""
    if "cluster" in pool.columns:
        return "response clusters", pool["cluster"].fill_null(-1).to_numpy()
    length = pool["response_tokens"]
    # Equal lengths must be in one quarter, so the borders are lengths, not ranks.
    borders = [length.quantile(part, "nearest") for part in (0.25, 0.5, 0.75)]
    quarter = pl.sum_horizontal((pl.col("response_tokens") > border).cast(pl.Int32) for border in borders)
    keys = pool.select("source", quarter=quarter).select(key=pl.struct("source", "quarter").rank("dense") - 1)
    return "sources and quarters of response length", keys["key"].to_numpy().astype(np.int64)


def _covered(strata: np.ndarray, members: np.ndarray) -> float:
    every = np.unique(strata[strata >= 0])
    return len(np.intersect1d(every, strata[members])) / max(1, len(every))


def _random_draws(cost: Vector, amount: float, is_far: np.ndarray, strata: np.ndarray, seed: int) -> np.ndarray:
    """Return samples, far samples and covered share of strata of random choices with at most `amount`: [draws, 3]."""
    rng, rows = np.random.default_rng(seed), []
    size = int(strata.max(initial=-1)) + 1
    every = max(1, len(np.unique(strata[strata >= 0])))
    for _ in range(_RANDOM_DRAWS):
        # All orders are equally likely, so the first samples that fit are a uniform choice.
        order = rng.permutation(len(cost))
        taken = order[: int(np.searchsorted(np.cumsum(cost[order]), amount, side="right"))]
        met = np.zeros(size, dtype=bool)
        met[strata[taken][strata[taken] >= 0]] = True
        rows.append((len(taken), is_far[taken].sum(), met.sum() / every))
    return np.array(rows, dtype=np.float64)


def _changes(
    rates: _Rates, choice: tuple[float, float], chance: tuple[float, float], use: float, far: Vector, rest: Vector
) -> tuple[Vector, Vector, Vector]:
    """Return the changes of the loss on far text, on the rest and over the use: float64 [draws] each.

    `choice`, `chance`: the number of samples, and of those that show far text, in the choice and in a random one. One
    sample is added to each class, so that the logarithm of an empty class exists.
    """
    chosen, drawn = rates.needing(*choice), rates.needing(*chance)
    of_far = -far * np.log2((chosen + 1) / (drawn + 1))
    of_rest = -rest * np.log2((choice[0] - chosen + 1) / (chance[0] - drawn + 1))
    return of_far, of_rest, use * of_far + (1 - use) * of_rest


def verdict(found: Forecast) -> tuple[SelectionVerdict, tuple[str, ...]]:
    """Return the verdict on training with a choice, and its reasons.

    `do_not_select`: the choice lacks responses that a random one has, or has more far text than the use. `pays`: the
    model has a far deficit, the pool has too small a share of far text, the choice has more, and the pool holds enough.
    Else `level`: clean random samples are expected to do as well. The thresholds are constants of this module.
    """
    # Two questions in turn. Does the choice do harm? Then nothing else counts. If not, is every condition of a gain
    # met? One missing is enough for `level`: a random choice costs nothing, so the burden of proof is on the selection.
    against = []
    if found.covered < LEAST_COVERAGE * found.covered_random:
        against.append(
            f"the choice covers {percent(found.covered, 0)} of {found.strata}, "
            f"a random one {percent(found.covered_random, 0)}"
        )
    if found.chosen_share > found.use + MOST_BEYOND_USE:
        against.append(
            f"{percent(found.chosen_share, 0)} of the choice is far text, and {percent(found.use, 0)} of the use"
        )
    if against:
        return "do_not_select", tuple(against)
    beyond, lacking = found.deficit.beyond, []
    if found.trains_other:
        lacking.append("the far deficit is that of models.long, and another model is trained (training.model)")
    elif beyond is None:
        which = "far" if found.deficit.far is None else "near"
        lacking.append(
            f"no token depends on {which} text, so the far deficit has no {'value' if which == 'far' else 'control'}"
        )
    elif beyond.low <= LEAST_DEFICIT:
        lacking.append(
            f"the far deficit beyond its near control may be {fixed(beyond.low)}, not above {LEAST_DEFICIT:g}"
        )
    if found.mismatch.value <= LEAST_MISMATCH:
        lacking.append(f"the mismatch is {fixed(found.mismatch.value)} bits, not above {LEAST_MISMATCH:g}")
    if not found.chosen_far:
        lacking.append("the choice has no far samples")
    elif found.enrichment is not None and found.enrichment < LEAST_ENRICHMENT:
        lacking.append(
            f"the choice has {fixed(found.enrichment, 1)} times the far samples of a random one, fewer than "
            f"{LEAST_ENRICHMENT:g} times"
        )
    if found.supply < LEAST_SUPPLY:
        lacking.append(f"the pool has {percent(found.supply, 0)} of the far text that the use needs of this amount")
    return ("level", tuple(lacking)) if lacking else ("pays", ("deficit, mismatch, enrichment and supply are enough",))


def choice_warnings(rule: RuleConfig, kinds: pl.Series, *, far: Estimated | None = None, has_chats: bool) -> list[str]:
    """Return a sentence for each sign that a choice lacks samples that a model needs besides far text.

    Args:
        rule: the rule that chose.
        kinds: `dependency` of the chosen samples, str; null: unknown.
        far: the share of the pool that needs far text; None: not known.
        has_chats: whether the training mix includes short conversations.
    """
    sentences, shown = [], int(kinds.is_in(FAR).sum())
    if rule.rule in _BEST_ONLY and not has_chats and kinds.len() and shown > MOSTLY_FAR * kinds.len():
        sentences.append(
            f"{percent(shown / kinds.len(), 0)} of the chosen samples show far text, and there are no short "
            f"conversations (short_chat). A model that is trained on these alone loses other kinds of response. Add "
            f"short_chat, or choose by another rule than {rule.rule}."
        )
    fraction = None if rule.budget is not None or rule.count is not None else rule.fraction or DEFAULT_FRACTION
    if rule.rule in _BEST_ONLY and far is not None and fraction is not None and fraction > far.high:
        sentences.append(
            f"selection.fraction is {fraction:g}, but about {percent(far.value, 0)} of the samples need far text, "
            f"at most {percent(far.high, 0)}. The rest of the choice does not. Lower the fraction, or choose by "
            f"another rule than {rule.rule}."
        )
    return sentences


def decided(
    samples: pl.DataFrame, rule: RuleConfig, sums: pl.DataFrame, *, trains_other: bool = False
) -> tuple[RuleConfig, Forecast]:
    """Return the rule that `rule: auto` takes, and the forecast for `mix`.

    It is `mix` if the forecast's verdict on it is `pays`. Else it is `clean`: a random choice without what is proven
    useless is then expected to do as well, and it leaves out no form of response. It does not read
    `selection.ground_truth`: labels judge a choice and do not make it.

    Args:
        samples: as for rules.chosen_ids with rule `mix`, with `response_tokens`.
        rule: the rule with its amount.
        sums: from token_sums.
        trains_other: see forecast.

    Raises:
        GateauError: the data cannot satisfy `mix`.
    """
    # The forecast is of `mix` only: a random choice is what it is compared with.
    mix = rule.under("mix")
    readable = samples.filter(pl.col("response_tokens").is_not_null())
    prediction = forecast(readable, mix, sums, chosen=chosen_ids(samples, mix), trains_other=trains_other)
    return (mix if prediction.verdict == "pays" else rule.under("clean")), prediction
