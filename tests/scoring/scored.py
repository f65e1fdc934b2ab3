"""Short ways to score samples in a test, and to compare their figures with the slow obvious reference."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from gateau_dagster.config import ScoringConfig
from gateau_dagster.data.sample import Reject, Sample
from gateau_dagster.models.flops import ForwardWork, Meter
from gateau_dagster.models.loading import LoadedModel
from gateau_dagster.scoring.contextual_awareness import CamRow
from gateau_dagster.scoring.focus_scores import FocusPlan, FocusWeights, contextual_dependency_score
from gateau_dagster.scoring.response_perplexity import PerplexityRow
from gateau_dagster.scoring.sample_table import Running
from gateau_dagster.scoring.scorer import Request, SampleOutcome, score_samples
from gateau_dagster.scoring.segment_gains import NOTED
from gateau_dagster.scoring.span_scorer import Document, MeasuredSpans, measure_documents
from tests.scoring.reference import Reference, reference, reference_model


def scoring(**changes: object) -> ScoringConfig:
    return ScoringConfig.model_validate({"max_length": 4096, "segment_length": 32, "dtype": "float32"} | changes)


def running(max_length: int = 2048, **scoring: Any) -> Running:
    """For a table's function."""
    return Running(max_length=max_length, scoring=ScoringConfig(dtype="float32", **scoring), work=ForwardWork())


def outcomes(
    loaded: LoadedModel,
    samples: Iterable[Sample],
    *,
    perplexity: bool = True,
    cam: bool = True,
    max_length: int = 4096,
    meter: Meter | None = None,
    **changes: object,
) -> list[SampleOutcome]:
    """All of them, with `changes` to the scoring section."""
    requests = (Request(sample=sample, perplexity=perplexity, cam=cam) for sample in samples)
    config, meter = scoring(**changes), meter or Meter()
    return list(score_samples(loaded, requests, max_length=max_length, scoring=config, meter=meter))


def cam_figures(loaded: LoadedModel, sample: Sample, **changes: Any) -> Any:
    """The sample's row of `cam`, alone."""
    (outcome,) = outcomes(loaded, [sample], perplexity=False, **changes)
    return outcome.cam


def measured_text(loaded: LoadedModel, ids: Sequence[int], plan: FocusPlan, work: ForwardWork | None = None) -> Any:
    """What LADM measures of one text by its token ids: Measured or Reject."""
    (outcome,) = measure_documents(loaded, [Document(name="", ids=tuple(ids))], plan=plan, work=work or ForwardWork())
    assert isinstance(outcome, MeasuredSpans | Reject)
    return outcome


def text_score(
    loaded: LoadedModel, ids: Sequence[int], plan: FocusPlan, weights: FocusWeights | None = None
) -> float | None:
    """LADM's score of one text by its token ids; None when it is too short for a scored span."""
    measured = measured_text(loaded, ids, plan)
    return contextual_dependency_score(measured.sums, plan, measured.tokens, weights)


TOLERANCE = 1e-4  # relative, in float32


def references(
    loaded: LoadedModel, scoring: ScoringConfig, max_length: int, samples: list[Sample], visible: int | None = None
) -> list[Reference]:
    """The reference's figures of each sample."""
    twin = reference_model(loaded.model)
    return [
        reference(
            twin,
            loaded.tokenizer,
            sample,
            max_length=max_length,
            segment_length=scoring.segment_length,
            template=scoring.template,
            visible_tokens=visible,
        )
        for sample in samples
    ]


def check(sample: Sample, outcome: SampleOutcome, want: Reference) -> None:
    """Assert that both rows of a sample agree with the reference."""
    row, measured = outcome.perplexity, outcome.cam
    assert isinstance(row, PerplexityRow) and isinstance(measured, CamRow)
    assert outcome.sample_id == row.sample_id == measured.sample_id == sample.sample_id
    assert row.digest == measured.digest == sample.digest
    _close([row.perplexity, row.mean_nll], [want.perplexity, want.mean_nll])
    assert (row.context_tokens, row.response_tokens) == (want.context_tokens, want.response_tokens)
    assert row.truncated_tokens == want.truncated_tokens
    assert measured.segments == len(want.segment_perplexity)
    _close(measured.segment_perplexity, want.segment_perplexity)
    _close(measured.segment_attention, want.segment_attention)
    assert (measured.cas is None) == (want.cas is None)
    if want.cas is not None:
        _close(measured.cas, want.cas)
    _close(row.token_probability, want.token_probability)
    assert measured.near_segments == want.near_segments
    _close(measured.no_context_probability, want.no_context_probability)
    _close(measured.near_probability, want.near_probability)
    _close(measured.far_probability, want.far_probability)
    _close(row.mean_probability, want.mean_probability)
    check_gains(measured, want)
    assert (measured.far_gain is None) == (want.far_gain is None)
    if measured.far_gain is not None and want.far_gain is not None:
        np.testing.assert_allclose(measured.far_gain, want.far_gain, rtol=0, atol=far_gain_tolerance(want))


def check_gains(measured: CamRow, want: Reference) -> None:
    """Each gain is off by TOLERANCE of the two probabilities at most; of segments that are as good any may be named."""
    tokens = len(want.near_probability)
    np.testing.assert_allclose(measured.segment_gain, want.segment_gain, rtol=0, atol=2 * TOLERANCE * tokens)
    assert len(measured.far_segment) == tokens
    for token, segment in enumerate(measured.far_segment):
        far, near = want.far_probability[token], want.near_probability[token]
        slack = TOLERANCE * (near + far)
        if segment is None:
            assert far - near < NOTED + slack
        else:
            assert want.far_segment_probabilities[segment][token] >= far - slack - 1e-5
            assert far - near > NOTED - slack


def far_gain_tolerance(want: Reference) -> float:
    """How far FG may be off where each near_t and far p_t is off by TOLERANCE of itself.

    A gain max(0, far - near) is then off by TOLERANCE·(near + far) at most: relative to the two, not to what their
    difference leaves. A mean of the k largest moves no further than the gain that moves furthest.
    """
    largest = max(near + far for near, far in zip(want.near_probability, want.far_probability, strict=True))
    return TOLERANCE * largest


def compare(
    loaded: LoadedModel, scoring: ScoringConfig, max_length: int, samples: list[Sample], visible: int | None = None
) -> int:
    """Assert that all rows agree; returns how many samples were truncated."""
    wanted = references(loaded, scoring, max_length, samples, visible)
    requests = [Request(sample=sample, perplexity=True, cam=True) for sample in samples]
    made = score_samples(
        loaded, requests, max_length=max_length, scoring=scoring, meter=Meter(), visible_tokens=visible
    )
    for sample, outcome, want in zip(samples, made, wanted, strict=True):
        check(sample, outcome, want)
    return sum(want.truncated_tokens > 0 for want in wanted)


def _close(got: object, want: object) -> None:
    np.testing.assert_allclose(np.asarray(got, float), np.asarray(want, float), rtol=TOLERANCE, atol=0)
