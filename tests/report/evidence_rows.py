"""Rows of a sample as the scoring writes them, of given probabilities."""

from collections.abc import Sequence
from dataclasses import asdict, replace

import numpy as np

from gateau_dagster.data.sample import Sample
from gateau_dagster.models.prompt import build_prompt
from gateau_dagster.report.evidence import EvidenceRows
from gateau_dagster.scoring.contextual_awareness import CamFigures, cam_row
from gateau_dagster.scoring.response_perplexity import perplexity_row

LENGTH = 8  # tokens of a segment


def sample(context: str, response: str, sample_id: str = "s") -> Sample:
    return Sample(sample_id=sample_id, source="test", context=context, instruction="say", response=response)


def rows_of(
    tokenizer: object,
    one: Sample,
    *,
    cut: int = 0,
    cut_short: int = 0,
    near: int = 1,
    gives: Sequence[tuple[int, int, float]] = (),
    attention: bool = True,
) -> EvidenceRows:
    """Every token has p 0.1 whatever is shown; `gives`: segment, token, and p of that token given that segment alone.

    cut, cut_short: context tokens that theta_B and theta_A do not see.
    """
    whole = build_prompt(tokenizer, one, max_length=10**6)  # pyright: ignore
    prompts = [replace(whole, context=whole.context[n:], truncated_tokens=n) for n in (cut, cut_short)]
    tokens, context = len(whole.response), len(prompts[0].context)
    probabilities = np.full((-(-context // LENGTH), tokens), 0.1)
    for segment, token, p in gives:
        probabilities[segment, token] = p
    figures = CamFigures(
        without_context=-np.log(np.full(tokens, 0.1)),
        segments=[-np.log(row) for row in probabilities],
        attention=np.linspace(0.1, 0.2, context) if attention and context else None,
        near=min(near, len(probabilities)),
    )
    long, short = (
        perplexity_row(one, prompt, np.full(tokens, nll)) for prompt, nll in zip(prompts, (0.5, 3), strict=True)
    )
    cam = cam_row(one, figures, segment_length=LENGTH)
    return EvidenceRows(cam=asdict(cam), long=asdict(long), short=asdict(short))
