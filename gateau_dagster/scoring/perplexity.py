"""Response perplexity (Eq. 1): log-probabilities of the response tokens, all of them and no others."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gateau_dagster.data.sample import Sample
from gateau_dagster.errors import UnscorableSampleError
from gateau_dagster.models.forward import Float64, response_nll_tensor
from gateau_dagster.models.loading import LoadedModel
from gateau_dagster.models.prompt import Prompt
from gateau_dagster.scoring.segments import probability


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
    token_probability: list[float]
    mean_probability: float


def response_nll(loaded: LoadedModel, prompts: Sequence[Prompt]) -> list[Float64]:
    """-log P(y_i | c, x, y_<i) in nats for every response token of each prompt: one float64 array [|y|] a prompt.

    The prompts go through the model as one packed row. Memory does not depend on the vocabulary times the prompt's
    length: only response rows meet the output layer, and those in chunks.
    """
    nll = response_nll_tensor(loaded, prompts).cpu().numpy()
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


def perplexity_row(sample: Sample, prompt: Prompt, nll: Float64) -> PerplexityRow:
    """The sample's row, from the NLL of each response token of its prompt [|y|]. Raises UnscorableSampleError."""
    mean, perplexity = mean_nll_and_perplexity(nll)
    probabilities = probability(nll)
    return PerplexityRow(
        sample_id=sample.sample_id,
        digest=sample.digest,
        perplexity=perplexity,
        mean_nll=mean,
        context_tokens=len(prompt.context),
        response_tokens=len(prompt.response),
        truncated_tokens=prompt.truncated_tokens,
        token_probability=probabilities.tolist(),
        mean_probability=float(probabilities.mean(dtype=np.float64)),
    )
