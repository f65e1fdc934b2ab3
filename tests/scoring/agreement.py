"""Compares the scorer's figures with the slow obvious reference."""

import numpy as np

from gateau_dagster.config import ScoringConfig
from gateau_dagster.data.sample import Sample
from gateau_dagster.scoring.cam import CamRow
from gateau_dagster.scoring.effort import Meter
from gateau_dagster.scoring.loading import LoadedModel
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
        # A difference of probabilities: relative to those, not to what is left of them.
        np.testing.assert_allclose(measured.far_gain, want.far_gain, rtol=TOLERANCE, atol=TOLERANCE)


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
