"""Contextual awareness measurement of the paper's section 2.2: Eqs. 3, 4 and 5 for one sample at a time."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from gateau_dagster.config import ScoringConfig
from gateau_dagster.data.sample import Reject, Sample
from gateau_dagster.errors import ShortOfMemoryError, UnscorableSampleError
from gateau_dagster.scoring.attention import context_attention, require_attention_interface
from gateau_dagster.scoring.contextual_awareness import contextual_awareness_score
from gateau_dagster.scoring.forward import Float64
from gateau_dagster.scoring.loading import LoadedModel
from gateau_dagster.scoring.memory import is_out_of_memory, out_of_memory_reason
from gateau_dagster.scoring.prompt import Prompt, build_prompt
from gateau_dagster.scoring.segments import cut_segments, segment_perplexities

_ADVICE = "lower scoring.batch_tokens or scoring.max_length, use dtype bfloat16, or a device with more memory"


@dataclass(frozen=True, kw_only=True)
class CamRow:
    """A row of `cam` (tables.CAM)."""

    sample_id: str
    digest: str
    segments: int
    segment_perplexity: list[float]
    segment_attention: list[float]
    cas: float | None


def cam_rows(
    loaded: LoadedModel, samples: Iterable[Sample], *, max_length: int, scoring: ScoringConfig
) -> Iterator[CamRow | Reject]:
    """One row or reject per sample, in order, as soon as each is computed. `max_length`: see effective_max_length.

    Raises GateauError, before any sample, for a model whose attention weights cannot be seen.
    """
    require_attention_interface(loaded)
    for sample in samples:
        try:
            yield _row(loaded, sample, max_length=max_length, scoring=scoring)
        except UnscorableSampleError as error:
            short = isinstance(error, ShortOfMemoryError)
            yield Reject(sample_id=sample.sample_id, reason=str(error), short_of_memory=short)


def segment_means(attention: Float64, segment_length: int) -> list[float]:
    """The raw values of Eq. 4: mean of a_t over each segment's own tokens, from a_t [C]."""
    return [float(np.mean(attention[a:b])) for a, b in cut_segments(len(attention), segment_length)]


def _row(loaded: LoadedModel, sample: Sample, *, max_length: int, scoring: ScoringConfig) -> CamRow:
    prompt = build_prompt(loaded.tokenizer, sample, max_length=max_length, template=scoring.template)
    try:
        perplexities, attention = _measure(loaded, prompt, scoring)
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        raise ShortOfMemoryError(out_of_memory_reason(prompt.length, _ADVICE)) from error
    if not np.isfinite(attention).all():
        raise UnscorableSampleError("attention to the context is not finite: try dtype bfloat16 or float32")
    return CamRow(
        sample_id=sample.sample_id,
        digest=sample.digest,
        segments=len(perplexities),
        segment_perplexity=perplexities,
        segment_attention=attention,
        cas=contextual_awareness_score(perplexities, attention),
    )


def _measure(loaded: LoadedModel, prompt: Prompt, scoring: ScoringConfig) -> tuple[list[float], list[float]]:
    if not prompt.context:
        return [], []
    length = scoring.segment_length
    perplexities = segment_perplexities(loaded, prompt, segment_length=length, batch_tokens=scoring.batch_tokens)
    return perplexities, segment_means(context_attention(loaded, prompt).attention, length)
