"""Short ways to score samples in a test."""

from collections.abc import Iterable, Sequence
from typing import Any

from gateau_dagster.config import ScoringConfig
from gateau_dagster.data.sample import Reject, Sample
from gateau_dagster.models.flops import Meter, Work
from gateau_dagster.models.loading import LoadedModel
from gateau_dagster.scoring.focus_scores import FocusPlan, FocusWeights, contextual_dependency_score
from gateau_dagster.scoring.scorer import Outcome, Request, score_samples
from gateau_dagster.scoring.span_scorer import Document, Measured, measure_documents


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


def measured_text(loaded: LoadedModel, ids: Sequence[int], plan: FocusPlan, work: Work | None = None) -> Any:
    """What LADM measures of one text by its token ids: Measured or Reject."""
    (outcome,) = measure_documents(loaded, [Document(name="", ids=tuple(ids))], plan=plan, work=work or Work())
    assert isinstance(outcome, Measured | Reject)
    return outcome


def text_score(
    loaded: LoadedModel, ids: Sequence[int], plan: FocusPlan, weights: FocusWeights | None = None
) -> float | None:
    """LADM's score of one text by its token ids; None when it is too short for a scored span."""
    measured = measured_text(loaded, ids, plan)
    return contextual_dependency_score(measured.sums, plan, measured.spans, weights)
