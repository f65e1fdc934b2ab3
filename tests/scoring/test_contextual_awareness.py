"""Eqs. 3-5 against plain-Python twins, and at the edges of float64."""

import math
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateau_dagster.scoring.contextual_awareness import (
    contextual_awareness_score,
    importance_score,
    segment_attention_score,
)

from .reference import reference_cas, reference_softmax

_PAIRS = st.lists(st.tuples(st.floats(1, 1e6), st.floats(0, 1)), min_size=2, max_size=40)


@settings(max_examples=100, deadline=None)
@given(_PAIRS)
def test_scores_agree_with_the_twin(pairs: list[tuple[float, float]]) -> None:
    perplexity, attention = [p for p, _ in pairs], [a for _, a in pairs]
    np.testing.assert_allclose(importance_score(perplexity), reference_softmax(perplexity), rtol=1e-12, atol=1e-300)
    np.testing.assert_allclose(segment_attention_score(attention), reference_softmax(attention), rtol=1e-12)
    cas = contextual_awareness_score(perplexity, attention)
    assert cas == pytest.approx(reference_cas(perplexity, attention), rel=1e-12)
    assert cas is not None and 0 < cas <= 1


def test_known_value() -> None:
    # softmax of (ln 3, 0) is (3/4, 1/4); of (0, 0) is (1/2, 1/2): cosine 0.5 / (sqrt(10)/4 * sqrt(1/2)).
    assert importance_score([math.log(3), 0.0]) == pytest.approx([0.75, 0.25])
    assert contextual_awareness_score([math.log(3), 0.0], [0.0, 0.0]) == pytest.approx(2 / math.sqrt(5))


@pytest.mark.parametrize("values", [[], [3.0]])
def test_fewer_than_two_segments_have_no_score(values: list[float]) -> None:
    assert contextual_awareness_score(values, values) is None


def test_huge_perplexities_do_not_overflow() -> None:
    with np.errstate(over="raise", invalid="raise"):
        scores = importance_score([1e300, 2.0, 1.5e300])
        assert scores.tolist() == [0.0, 0.0, 1.0]
        assert contextual_awareness_score([1e300, 1e300], [0.1, 0.1]) == pytest.approx(1, rel=1e-12)


@pytest.mark.parametrize("bad", [math.inf, math.nan])
def test_values_that_are_not_finite_are_refused(bad: float) -> None:
    with pytest.raises(ValueError, match="not finite"):
        contextual_awareness_score([1.0, bad], [0.1, 0.2])


def test_lengths_must_agree() -> None:
    with pytest.raises(ValueError, match="2 segment perplexities, but 1 attentions"):
        contextual_awareness_score([1.0, 2.0], [0.1])


def test_module_needs_no_torch() -> None:
    import subprocess

    code = "import sys, gateau_dagster.scoring.contextual_awareness; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
