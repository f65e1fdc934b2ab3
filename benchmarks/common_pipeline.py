"""The pipeline's own scoring of a sample set, its tables held against those of the straightforward implementation."""

import math
from collections.abc import Iterable, Iterator, Sequence

from common_straightforward import Cam

from gateau_dagster.config import ScoringConfig
from gateau_dagster.data.sample import Reject, Sample
from gateau_dagster.models.flops import Meter
from gateau_dagster.models.loading import LoadedModel
from gateau_dagster.scoring.contextual_awareness import CamRow
from gateau_dagster.scoring.response_perplexity import PerplexityRow
from gateau_dagster.scoring.scorer import Request, SampleOutcome, score_samples


def score(
    loaded: LoadedModel, samples: Iterable[Sample], scoring: ScoringConfig, *, cam: bool
) -> tuple[list[PerplexityRow], list[CamRow]]:
    """Perplexity, and the CAM rows too with `cam`, as the shards are scored. No sample may be rejected."""
    perplexity_rows: list[PerplexityRow] = []
    cam_rows: list[CamRow] = []
    for outcome in _outcomes(loaded, samples, scoring, cam=cam, meter=Meter()):
        if isinstance(outcome.perplexity, Reject) or isinstance(outcome.cam, Reject):
            raise RuntimeError(f"a sample was rejected: {outcome.perplexity} {outcome.cam}")
        assert outcome.perplexity is not None
        perplexity_rows.append(outcome.perplexity)
        if outcome.cam is not None:
            cam_rows.append(outcome.cam)
    return perplexity_rows, cam_rows


def score_with_meter(loaded: LoadedModel, samples: Iterable[Sample], scoring: ScoringConfig) -> Meter:
    """Scores both tables of theta_B; what that took in tokens and FLOPs."""
    meter = Meter()
    for _ in _outcomes(loaded, samples, scoring, cam=True, meter=meter):
        pass
    return meter


def _outcomes(
    loaded: LoadedModel, samples: Iterable[Sample], scoring: ScoringConfig, *, cam: bool, meter: Meter
) -> Iterator[SampleOutcome]:
    requests = [Request(sample=sample, perplexity=True, cam=cam) for sample in samples]
    return score_samples(loaded, requests, max_length=scoring.max_length, scoring=scoring, meter=meter)


def difference(found: Sequence[float], expected: Sequence[float]) -> float:
    """Largest relative difference; infinite where one side is not finite or lacks a value."""
    if len(found) != len(expected):
        return math.inf
    differences = [abs(a - b) / abs(b) if b else abs(a) for a, b in zip(found, expected, strict=True)]
    return max((each if math.isfinite(each) else math.inf for each in differences), default=0.0)


def cam_differences(found: Sequence[CamRow | Cam], expected: Sequence[CamRow | Cam]) -> dict[str, float]:
    """Largest relative difference of each figure of `cam`, over all samples."""
    pairs = list(zip(found, expected, strict=True))
    worst = {
        name: max((difference(getattr(a, name), getattr(b, name)) for a, b in pairs), default=0.0)
        for name in ("segment_perplexity", "segment_attention")
    }
    scores = [(a.cas, b.cas) for a, b in pairs]
    worst["cas"] = max((0.0 if a is b else difference([a or 0.0], [b or 0.0]) for a, b in scores), default=0.0)
    return worst
