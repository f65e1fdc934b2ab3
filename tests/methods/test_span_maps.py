"""What spans add to a score, of every method that reads some: together they are the score."""

from typing import Any

import numpy as np
import pytest

from gateau_dagster.data.sample import Reject
from gateau_dagster.scoring.segments import contextual_awareness_score
from tests.methods import measured, test_delta_perplexity, test_ladm
from tests.methods.configured import method_of, scores_of

LADM = [
    {},
    {"variant": "program"},
    {"position_weight": False},
    {"interval_weight": False, "position_weight": False},
    {"deviation_weight": False, "variant": "program"},
]
DELTA = [{}, {"variant": "program"}, {"window": None}, {"alpha": 3, "beta": 0.5}, {"threshold": -0.5}]
CASES = [("ladm", test_ladm.options_of(each)) for each in LADM]
CASES += [("delta_perplexity", test_delta_perplexity.OPTIONS | each) for each in DELTA]


@pytest.mark.parametrize(("name", "options"), CASES)
def test_spans_add_up_to_the_score(name: str, options: dict[str, Any]) -> None:
    rows = [row for row in measured.outcomes(name, options) if not isinstance(row, Reject)]
    own = method_of(name, options=options).span_map()
    assert own is not None and own.model == "long"
    frame: Any = test_ladm.frame() if name == "ladm" else test_delta_perplexity.rows()
    stored = {own.table: type(frame)(rows, schema=frame.schema)}
    scores = scores_of(name, stored, options=options)
    for row in rows:
        spans, score = own.spans(row), scores[row["sample_id"]]
        assert (spans is None) == (score is None)
        if spans is not None:
            assert sum(spans.added) == pytest.approx(score, rel=1e-9) and score != 0
            assert spans.tokens == row["tokens"]
            assert 0 <= spans.tokens - spans.first - len(spans.added) * spans.length < spans.length
    assert None in scores.values()


@pytest.mark.parametrize("preset", ["paper", "official"])
@pytest.mark.parametrize("name", ["gateau", "cam"])
def test_segments_add_up_to_cas(name: str, preset: str) -> None:
    own = method_of(name, preset=preset).span_map()
    assert own is not None and own.table == "cam"
    rng = np.random.default_rng(1)
    for segments in (2, 7):
        figures = [rng.uniform(1, 9, segments).tolist(), rng.uniform(0, 0.1, segments).tolist()]
        row = dict(zip(("segment_perplexity", "segment_attention"), figures, strict=True))
        spans = own.spans(row | {"cas": 0.5})
        assert spans is not None and len(spans.added) == segments and spans.of == "context"
        assert sum(spans.added) == pytest.approx(contextual_awareness_score(*figures), rel=1e-12)
        assert own.spans(row | {"cas": None}) is None


@pytest.mark.parametrize("name", ["gateau", "cam", "hmg", "length", "random", "far_gain"])
def test_a_score_that_is_no_sum_over_spans_has_none(name: str) -> None:
    assert method_of(name).span_map() is None
