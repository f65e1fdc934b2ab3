"""Short ways to score samples in a test."""

from collections.abc import Iterable
from typing import Any

from gateau_dagster.config import ScoringConfig
from gateau_dagster.data.sample import Sample
from gateau_dagster.scoring.effort import Meter
from gateau_dagster.scoring.loading import LoadedModel
from gateau_dagster.scoring.scorer import Outcome, Request, score_samples


def scoring(**changes: object) -> ScoringConfig:
    return ScoringConfig.model_validate({"max_length": 4096, "segment_length": 32, "dtype": "float32"} | changes)


def outcomes(
    loaded: LoadedModel,
    samples: Iterable[Sample],
    *,
    perplexity: bool = True,
    cam: bool = True,
    max_length: int = 4096,
    meter: Meter | None = None,
    **changes: object,
) -> list[Outcome]:
    """All of them, with `changes` to the scoring section."""
    requests = (Request(sample=sample, perplexity=perplexity, cam=cam) for sample in samples)
    config, meter = scoring(**changes), meter or Meter()
    return list(score_samples(loaded, requests, max_length=max_length, scoring=config, meter=meter))


def cam_figures(loaded: LoadedModel, sample: Sample, **changes: Any) -> Any:
    """The sample's row of `cam`, alone."""
    (outcome,) = outcomes(loaded, [sample], perplexity=False, **changes)
    return outcome.cam
