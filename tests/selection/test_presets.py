import math

import numpy as np
import pytest

from gateau_dagster.selection.presets import Measures, PresetScores, official, paper, robust

SHORT, LONG, CAS = [6.0, 2.0, 30.0, 5.0], [2.0, 2.5, 31.0, 4.0], [0.4, 0.9, math.nan, 0.6]
SHORT_P, LONG_P = [0.25, 0.7, 0.1, 0.4], [0.6, 0.5, 0.125, 0.4]
GAINS = [0.375, 0.0, math.nan, 0.25]


@pytest.fixture
def measures() -> Measures:
    return Measures(
        perplexity_short=np.array(SHORT),
        perplexity_long=np.array(LONG),
        probability_short=np.array(SHORT_P),
        probability_long=np.array(LONG_P),
        cas=np.array(CAS),
        far_gain=np.array(GAINS),
    )


def slow_softmax(values: list[float]) -> list[float]:
    return [math.exp(value) / sum(math.exp(other) for other in values) for value in values]


def slow_min_max(values: list[float]) -> list[float]:
    return [(value - min(values)) / (max(values) - min(values)) for value in values]


def known(values: list[float]) -> list[float]:
    return [value for value in values if not math.isnan(value)]


def spread(values: list[float]) -> list[float]:
    """Back to four samples, the third of which has one segment."""
    return [*values[:2], math.nan, values[2]]


def assert_scores(found: PresetScores, hmp: list[float], cas: list[float], terms: tuple[list[float], list[float]]):
    for got, wanted in zip((found.hmp, found.cas, found.hmp_term, found.cas_term), (hmp, cas, *terms), strict=True):
        assert got.dtype == np.float64
        np.testing.assert_allclose(got, wanted, rtol=1e-12, atol=1e-15)


def test_paper_is_equations_2_5_and_6(measures: Measures) -> None:
    hmp = [a - b for a, b in zip(slow_softmax(SHORT), slow_softmax(LONG), strict=True)]
    assert_scores(paper(measures), hmp, CAS, (slow_softmax(hmp), spread(slow_softmax(known(CAS)))))


def test_official_is_the_released_script(measures: Measures) -> None:
    hmp = [a - b for a, b in zip(slow_min_max(SHORT), slow_min_max(LONG), strict=True)]
    assert_scores(official(measures), hmp, CAS, (slow_softmax(hmp), CAS))


def test_robust_is_the_gain_in_probability_as_it_is(measures: Measures) -> None:
    hmp = [b - a for a, b in zip(SHORT_P, LONG_P, strict=True)]
    assert_scores(robust(measures), hmp, GAINS, (hmp, GAINS))


@pytest.mark.parametrize("preset", [paper, official, robust])
@pytest.mark.parametrize("alpha", [0.0, 0.8, 1.0])
def test_the_score_weighs_the_terms_and_puts_null_cas_last(measures: Measures, preset, alpha: float) -> None:
    scores = preset(measures)
    found = scores.score(alpha)
    for index in (0, 1, 3):
        wanted = alpha * scores.hmp_term[index] + (1 - alpha) * scores.cas_term[index]
        assert found[index] == pytest.approx(wanted, rel=1e-12)
    assert found[2] == pytest.approx(alpha * scores.hmp_term[2] - (2 if preset is robust else 1), rel=1e-12)
    assert found[2] < found[[0, 1, 3]].min()


@pytest.mark.parametrize("alpha", [0.0, 0.3, 0.8, 1.0])
def test_null_cas_is_last_whatever_the_probabilities(alpha: float) -> None:
    """The worst that a sample with CAS can be, and the best that one without can be."""
    scores = robust(
        Measures(
            perplexity_short=np.ones(3),
            perplexity_long=np.ones(3),
            probability_short=np.array([1.0, 0.0, 0.5]),
            probability_long=np.array([0.0, 1.0, 0.5]),
            cas=np.array([0.5, np.nan, np.nan]),
            far_gain=np.array([0.0, np.nan, np.nan]),
        )
    )
    worst, best, other = scores.score(alpha)
    assert worst >= best >= other
    assert alpha == 1 or worst > best
    assert alpha == 0 or best > other


def test_softmax_over_raw_perplexities_is_one_hot_and_ranks_the_noisiest_sample_first(measures: Measures) -> None:
    """Show why there is a preset of our own."""
    noisy = Measures(
        perplexity_short=np.array([6.0, 2.0, 5.0, 900.0]),
        perplexity_long=np.array([1.1, 2.0, 5.0, 890.0]),
        probability_short=np.array([0.3, 0.6, 0.4, 0.002]),
        probability_long=np.array([0.9, 0.6, 0.4, 0.003]),
        cas=np.array([0.5, 0.5, 0.5, 0.5]),
        far_gain=np.array([0.8, 0.0, 0.0, 1e-5]),
    )
    assert np.allclose(paper(noisy).score(0.8), 0.25, atol=1e-9)
    assert robust(noisy).score(0.8).argmax() == 0


def test_robust_refuses_a_probability_that_is_not_finite(measures: Measures) -> None:
    broken = Measures(**{**vars(measures), "probability_short": np.array([1.0, math.nan, 0.2, 0.3])})
    with pytest.raises(ValueError, match="not finite"):
        robust(broken)
