"""Eqs. 2-5 of LADM where they can be worked out on paper, and the pairs of spans that they are made of."""

import math

import numpy as np
import pytest
import torch

from gateau_dagster.models.attention_rows import AttentionSpec
from gateau_dagster.models.mask_pattern import MaskPattern
from gateau_dagster.scoring.focus_scores import (
    FocusPlan,
    FocusWeights,
    Variant,
    aggregated_focus_scores,
    contextual_dependency_score,
    focus_sums,
)
from gateau_dagster.scoring.span_attention import _SpanCollector
from tests.scoring.slow_ladm import slow_pairs

# Five spans of two tokens; m = 1, n = 1, both d = 1, n_0 = 3: j = 3 looks at i = 1, and j = 4 at i = 1, 2.
# Every query is 1 and the key of a token is the logarithm of its weight w, so that a row gives each token before it
# w / (sum of w so far). The weights are chosen for round sums:
#
#   span      s_0     s_1     s_2      s_3       s_4
#   w         4  2    1  1    3   3    6  20     40  80
#   sum       4  6    7  8    11  14   20 40     80  160
WEIGHTS = [4.0, 2.0, 1.0, 1.0, 3.0, 3.0, 6.0, 20.0, 40.0, 80.0]
TOKENS = 10


def _plan() -> FocusPlan:
    return FocusPlan(span_length=2, first_spans=1, local_spans=1, earlier_stride=1, later_stride=1, first_scored=3)


# The program scores a span behind more than m + 4d others: of spans of one token, the sixth and the seventh of these
# eight. The keys before s_6 sum to 20, those before s_7 to 40.
PROGRAM = FocusPlan(span_length=1, first_spans=1, earlier_stride=1, later_stride=1, variant="program")
PROGRAM_WEIGHTS = [6.0, 1.0, 2.0, 3.0, 4.0, 4.0, 20.0, 7.0]


def _scores(plan: FocusPlan, *heads: list[float]) -> np.ndarray:
    """PFS(1, 3), PFS(1, 4), PFS(2, 4) of a layer whose heads have these weights."""
    key = torch.tensor(heads, dtype=torch.float64).log()[:, :, None]
    collector = _SpanCollector(plan=plan, tokens=len(heads[0]))
    collector.observe(torch.ones_like(key), key, MaskPattern(), AttentionSpec(scaling=1.0))
    return collector.layers[0].numpy()[None]


def _cds(plan: FocusPlan, scores: np.ndarray, weights: FocusWeights | None = None) -> float | None:
    return contextual_dependency_score(focus_sums(plan, TOKENS, scores), plan, TOKENS, weights)


def test_pairwise_focus_on_paper() -> None:
    # The rows of s_3 have the sums 20 and 40, those of s_4 80 and 160; s_1 holds 2 and s_2 holds 6.
    # PFS(1,3) = 2/20 + 2/40 = 0.15, PFS(1,4) = 2/80 + 2/160 = 0.0375, PFS(2,4) = 6/80 + 6/160 = 0.1125.
    np.testing.assert_allclose(_scores(_plan(), WEIGHTS), [[0.15, 0.0375, 0.1125]], rtol=1e-12)
    # The program's rows see what is before their span, and no token of their own.
    six, seven = [1 / 20, 2 / 20, 3 / 20, 4 / 20, 4 / 20], [1 / 40, 2 / 40, 3 / 40, 4 / 40, 4 / 40, 20 / 40]
    np.testing.assert_allclose(_scores(PROGRAM, PROGRAM_WEIGHTS), [six + seven], rtol=1e-12)


def test_aggregated_focus_on_paper() -> None:
    sums = focus_sums(_plan(), TOKENS, _scores(_plan(), WEIGHTS))
    # One score has no deviation: σ_3 = 0. σ_4 is half the difference of two: (0.1125 - 0.0375) / 2 = 0.0375.
    np.testing.assert_allclose(sums.deviation, [[0.0, 0.0375]], atol=1e-15)
    # AFS(4) = 0.0375 * (0.0375 * 3 + 0.1125 * 2) = 0.0375 * 0.3375 = 0.01265625.
    afs = aggregated_focus_scores(sums, _plan(), TOKENS, FocusWeights())
    np.testing.assert_allclose(afs, [[0.0, 0.01265625]], atol=1e-15)


@pytest.mark.parametrize(
    ("weights", "expected"),
    [
        # 3/5 * 0 + 4/5 * 0.01265625
        (FocusWeights(), 0.010125),
        # w/o std: AFS(3) = 0.15 * 2 = 0.3, AFS(4) = 0.3375; 3/5 * 0.3 + 4/5 * 0.3375
        (FocusWeights(deviation=False), 0.45),
        # w/o length in Eqs. 4 and 5: AFS(4) = 0.0375 * (0.0375 + 0.1125)
        (FocusWeights(interval=False, position=False), 0.005625),
        # each alone: 4/5 * 0.005625, and 0.01265625 unweighted
        (FocusWeights(interval=False), 0.0045),
        (FocusWeights(position=False), 0.01265625),
        # neither: PFS added up, 0.15 + 0.0375 + 0.1125
        (FocusWeights(deviation=False, interval=False, position=False), 0.3),
    ],
)
def test_dependency_score_on_paper(weights: FocusWeights, expected: float) -> None:
    assert _cds(_plan(), _scores(_plan(), WEIGHTS), weights) == pytest.approx(expected, rel=1e-12)


def test_programs_score_on_paper() -> None:
    scores = _scores(PROGRAM, PROGRAM_WEIGHTS)

    def cds(**weights: bool) -> float | None:
        sums = focus_sums(PROGRAM, 8, scores)
        return contextual_dependency_score(sums, PROGRAM, 8, FocusWeights(**weights))

    # Of s_6 the mean is 0.7/5 = 0.14 and the squares of the differences sum to 0.017: σ_6² = 0.017/4. Of s_7 the mean
    # is 0.85/6 and the squares sum to 0.27875 - 0.85²/6 = 0.15833..: σ_7² = 0.15833../5.
    first, second = math.sqrt(0.017 / 4), math.sqrt((0.27875 - 0.85**2 / 6) / 5)
    # Distances count in tokens: of s_6 (5·1 + 4·2 + 3·3 + 2·4 + 1·4) / 20 = 1.7, of s_7
    # (6·1 + 5·2 + 4·3 + 3·4 + 2·4 + 1·20) / 40 = 1.7. Divided by T = 8, weighted by 6/8 and 7/8; the mean of two.
    assert cds() == pytest.approx((first * 1.7 / 8 * 6 / 8 + second * 1.7 / 8 * 7 / 8) / 2, rel=1e-12)
    assert cds(position=False) == pytest.approx((first + second) * 1.7 / 8 / 2, rel=1e-12)
    # w/o length: PFS added up, 0.7 and 0.85
    assert cds(interval=False, position=False) == pytest.approx((0.7 * first + 0.85 * second) / 2, rel=1e-12)
    assert cds(deviation=False) == pytest.approx(1.7 / 8 * (6 / 8 + 7 / 8) / 2, rel=1e-12)


def test_heads_are_averaged_before_the_deviation_and_layers_after_the_score() -> None:
    # Equal weights: a row that sees k tokens gives each span 2/k; both spans before s_4 get 2/9 + 2/10 = 19/45.
    plan, equal = _plan(), [1.0] * 10
    np.testing.assert_allclose(_scores(plan, equal)[0, 1:], [19 / 45, 19 / 45], rtol=1e-12)
    # As a layer of its own it has no deviation and the score 0: the mean over two layers is half the first's.
    layers = np.concatenate([_scores(plan, WEIGHTS), _scores(plan, equal)])
    assert _cds(plan, layers) == pytest.approx(0.010125 / 2, rel=1e-12)
    # As a head it adds to both PFS alike: PFS(1,4) = (0.0375 + 19/45) / 2, PFS(2,4) = (0.1125 + 19/45) / 2, and
    # σ_4 = 0.0375 / 2. 4/5 * σ_4 * (3 PFS(1,4) + 2 PFS(2,4)) = 0.015 * (0.3375 + 5 * 19/45) / 2.
    heads = _scores(plan, WEIGHTS, equal)
    assert _cds(plan, heads) == pytest.approx(0.015 * (0.3375 + 19 / 9) / 2, rel=1e-12)


def test_spans_end_where_the_sample_ends() -> None:
    # A token more at the begin, of weight 160: every sum grows by it, no span changes.
    scores = _scores(_plan(), [160.0, *WEIGHTS])
    expected = [2 / 180 + 2 / 200, 2 / 240 + 2 / 320, 6 / 240 + 6 / 320]
    np.testing.assert_allclose(scores, [expected], rtol=1e-12)


@pytest.mark.parametrize("variant", ["paper", "program"])
@pytest.mark.parametrize("tokens", [0, 48, 51, 52, 54, 56, 123, 125, 768])
@pytest.mark.parametrize(("m", "n", "d", "d_later", "n0"), [(1, 4, 4, 4, 16), (2, 0, 3, 5, 7), (0, 1, 1, 2, 2)])
def test_pairs_are_the_papers(tokens: int, variant: Variant, m: int, n: int, d: int, d_later: int, n0: int) -> None:
    plan = FocusPlan(
        span_length=3,
        first_spans=m,
        local_spans=n,
        earlier_stride=d,
        later_stride=d_later,
        first_scored=n0,
        variant=variant,
    )
    got = [(plan.start(j, tokens), [plan.start(i, tokens) for i in plan.earlier(j)]) for j in plan.later(tokens)]
    program = variant == "program"
    assert got == slow_pairs(tokens, length=3, m=m, n=n, d=d, d_later=d_later, n0=n0, program=program)
    assert all(earlier and earlier[-1] < j - (d * 3 - 1 if program else n * 3) for j, earlier in got)
    assert bool(got) == (tokens >= plan.fewest_tokens)


def test_the_papers_own_case() -> None:
    plan = FocusPlan()
    assert (plan.spans(32768), plan.offset(32768), plan.offset(32770)) == (256, 0, 2)
    assert plan.later(32768) == plan.later(32770) == list(range(16, 256, 4))
    assert (list(plan.earlier(16)), list(plan.earlier(18))) == ([1, 5, 9], [1, 5, 9, 13])
    assert plan.fewest_tokens == 2176


def test_the_programs_own_case() -> None:
    plan = FocusPlan(variant="program")
    assert (plan.later(32768)[0], plan.later(32768)[-1], len(plan.later(32768))) == (19, 255, 60)
    assert (list(plan.earlier(19)), list(plan.earlier(21))) == ([3, 7, 11, 15], [1, 5, 9, 13, 17])
    # The 17th span is scored where tokens stand before the first: its begin is behind more than 17 spans then.
    assert (plan.later(18 * 128), plan.later(18 * 128 + 1), plan.fewest_tokens) == ([], [17], 2305)


def test_sample_without_a_scored_span_has_no_score() -> None:
    sums = focus_sums(FocusPlan(), 2175, np.zeros((2, 0)))
    assert contextual_dependency_score(sums, FocusPlan(), 2175) is None


def test_plan_that_scores_nothing_is_a_bug() -> None:
    with pytest.raises(AssertionError):
        FocusPlan(first_scored=5)
    assert not math.isnan(_cds(_plan(), np.ones((1, 3))) or 0.0)
