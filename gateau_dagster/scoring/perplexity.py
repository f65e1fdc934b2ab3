"""Response perplexity (Eq. 1): log-probabilities of the response tokens, all of them and no others."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from gateau_dagster.config import ScoringConfig
from gateau_dagster.data.sample import Reject, Sample
from gateau_dagster.errors import ShortOfMemoryError, UnscorableSampleError
from gateau_dagster.scoring.forward import Float64, response_states, token_nll
from gateau_dagster.scoring.loading import LoadedModel
from gateau_dagster.scoring.memory import is_out_of_memory, out_of_memory_reason
from gateau_dagster.scoring.prompt import Prompt, build_prompt

_ADVICE = "lower scoring.max_length, use dtype bfloat16, or a device with more memory"


@dataclass(frozen=True, kw_only=True)
class PerplexityRow:
    """A row of `perplexity/<model>` (tables.PERPLEXITY)."""

    sample_id: str
    digest: str
    perplexity: float
    mean_nll: float
    context_tokens: int
    response_tokens: int
    truncated_tokens: int


def response_nll(loaded: LoadedModel, prompts: Sequence[Prompt]) -> list[Float64]:
    """-log P(y_i | c, x, y_<i) in nats for every response token of each prompt: one float64 array [|y|] a prompt.

    The prompts go through the model as one batch, padded on the right. Memory does not depend on the vocabulary
    times the prompt's length: only response rows meet the output layer, and those in chunks.
    """
    states = response_states(loaded, prompts)
    targets = [token for prompt in prompts for token in prompt.response]
    nll = token_nll(loaded, states, targets)
    ends = np.cumsum([len(prompt.response) for prompt in prompts])
    return np.split(nll, ends[:-1])


def mean_nll_and_perplexity(nll: Float64) -> tuple[float, float]:
    """Mean of the token NLLs (nats) and its exponential, Eq. 1.

    Raises UnscorableSampleError when either is not finite: a mean of infinities would rank the sample anywhere.
    """
    mean = float(np.mean(nll, dtype=np.float64))
    if not math.isfinite(mean):
        raise UnscorableSampleError(f"mean NLL of the response is {mean}: try dtype bfloat16 or float32")
    if mean > math.log(np.finfo(np.float64).max):
        raise UnscorableSampleError(f"mean NLL of the response is {mean:.1f}: its perplexity overflows float64")
    return mean, math.exp(mean)


def perplexity_rows(
    loaded: LoadedModel, samples: Iterable[Sample], *, max_length: int, scoring: ScoringConfig
) -> Iterator[PerplexityRow | Reject]:
    """One row or reject per sample, in order, as soon as each is computed. `max_length`: see effective_max_length."""
    for sample in samples:
        try:
            yield _row(loaded, sample, max_length=max_length, scoring=scoring)
        except UnscorableSampleError as error:
            short = isinstance(error, ShortOfMemoryError)
            yield Reject(sample_id=sample.sample_id, reason=str(error), short_of_memory=short)


def _row(loaded: LoadedModel, sample: Sample, *, max_length: int, scoring: ScoringConfig) -> PerplexityRow:
    prompt = build_prompt(loaded.tokenizer, sample, max_length=max_length, template=scoring.template)
    try:
        (nll,) = response_nll(loaded, [prompt])
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        raise ShortOfMemoryError(out_of_memory_reason(prompt.length, _ADVICE)) from error
    mean, perplexity = mean_nll_and_perplexity(nll)
    return PerplexityRow(
        sample_id=sample.sample_id,
        digest=sample.digest,
        perplexity=perplexity,
        mean_nll=mean,
        context_tokens=len(prompt.context),
        response_tokens=len(prompt.response),
        truncated_tokens=prompt.truncated_tokens,
    )
