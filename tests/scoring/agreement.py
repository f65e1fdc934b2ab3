"""Compares the scorer's figures with the slow obvious reference."""

import numpy as np

from gateau_dagster.config import ScoringConfig
from gateau_dagster.data.sample import Sample
from gateau_dagster.models.flops import Meter
from gateau_dagster.models.loading import LoadedModel
from gateau_dagster.scoring.contextual_awareness import CamRow
from gateau_dagster.scoring.perplexity import PerplexityRow
from gateau_dagster.scoring.scorer import Outcome, Request, score_samples

from .reference import Reference, reference, reference_model

TOLERANCE = 1e-4  # relative, in float32


def references(
    loaded: LoadedModel, scoring: ScoringConfig, max_length: int, samples: list[Sample], sight: int | None = None
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
            sight=sight,
        )
        for sample in samples
    ]


def check(sample: Sample, outcome: Outcome, want: Reference) -> None:
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
    _close(measured.near_probability, want.near_probability)
    _close(measured.far_probability, want.far_probability)
    _close(row.mean_probability, want.mean_probability)
    assert (measured.far_gain is None) == (want.far_gain is None)
    if measured.far_gain is not None and want.far_gain is not None:
        np.testing.assert_allclose(measured.far_gain, want.far_gain, rtol=0, atol=far_gain_tolerance(want))


def far_gain_tolerance(want: Reference) -> float:
    """How far FG may be off where each near_t and far p_t is off by TOLERANCE of itself.

    A gain max(0, far - near) is then off by TOLERANCE·(near + far) at most: relative to the two, not to what their
    difference leaves. A mean of the k largest moves no further than the gain that moves furthest.
    """
    largest = max(near + far for near, far in zip(want.near_probability, want.far_probability, strict=True))
    return TOLERANCE * largest


def compare(
    loaded: LoadedModel, scoring: ScoringConfig, max_length: int, samples: list[Sample], sight: int | None = None
) -> int:
    """Assert that all rows agree; returns how many samples were truncated."""
    wanted = references(loaded, scoring, max_length, samples, sight)
    requests = [Request(sample=sample, perplexity=True, cam=True) for sample in samples]
    made = score_samples(loaded, requests, max_length=max_length, scoring=scoring, meter=Meter(), sight=sight)
    for sample, outcome, want in zip(samples, made, wanted, strict=True):
        check(sample, outcome, want)
    return sum(want.truncated_tokens > 0 for want in wanted)


def _close(got: object, want: object) -> None:
    np.testing.assert_allclose(np.asarray(got, float), np.asarray(want, float), rtol=TOLERANCE, atol=0)
