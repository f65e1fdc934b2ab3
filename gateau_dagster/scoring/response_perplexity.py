"""Compute figures of tokens from their log-probabilities: response perplexity (Eq. 1), key tokens, information gain."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from gateau_dagster.data.sample import Sample
from gateau_dagster.errors import ShortOfMemoryError, UnscorableSampleError
from gateau_dagster.models.model_config import learned_positions

if TYPE_CHECKING:
    from gateau_dagster.models.loaded import LoadedModel
    from gateau_dagster.models.prompt import Prompt


GAIN, LEAST = 2.0, -2.0  # the paper's alpha and beta
Nlls = npt.NDArray[np.float64]


def key_tokens(long: Nlls, short: Nlls, *, gain: float, least: float) -> npt.NDArray[np.bool_]:
    """Return which tokens are key, bool [n], from -log P given the long and the short context, [n] each.

    A token is key if its log-probability is higher by more than `gain` given the long context (LSD), and above `least`
    there (LCL). A token is not key if `short` is NaN.
    """
    return (short - long > gain) & (-long > least)


def information_gain(long: Nlls, short: Nlls) -> Nlls:
    """Return p_long log(p_long / p_short) of each token, from -log P given the long and the short context, [n] each.

    Source: LongFilter (Deng et al. 2025, arXiv 2510.25804).
    """
    return np.exp(-long) * (short - long)


def token_nlls(loaded: LoadedModel, ids: Sequence[int]) -> Nlls:
    """Return -log P in nats of each token but the first, given all before it: [n-1].

    Raises UnscorableSampleError for more tokens than the model or the memory can hold.
    """
    import torch

    from gateau_dagster.models.forward import token_nll
    from gateau_dagster.models.memory import unless_out_of_memory
    from gateau_dagster.models.packing import lone_states

    @torch.no_grad()
    def read() -> Nlls:
        return token_nll(loaded, lone_states(loaded, ids)[:-1], ids[1:]).cpu().numpy()

    most = learned_positions(loaded.model.config)
    if most is not None and len(ids) > most:
        raise UnscorableSampleError(f"{loaded.name} has learned positions for {most} tokens, and not for {len(ids)}")
    found = unless_out_of_memory(read)
    if found is None:
        raise ShortOfMemoryError(f"{len(ids)} tokens do not fit into memory")
    return found


def short_context_nlls(loaded: LoadedModel, ids: tuple[int, ...], *, short: int, step: int) -> Nlls:
    """Return -log P of each token but the first [n-1], given between `short` and `short + step - 1` tokens before it.

    The first `short` tokens have NaN, because their context is no longer. Raises UnscorableSampleError as `token_nlls`.
    """
    # Each pass reads `short` tokens of context for `step` new ones, so it costs (short + step) / step passes over the
    # text. A pass for every token would give each exactly `short` tokens, at `short` times the cost.
    found = np.full(len(ids) - 1, np.nan)
    for begin in range(short, len(ids), step):
        end = min(begin + step, len(ids))
        found[begin - 1 : end - 1] = token_nlls(loaded, ids[begin - short : end])[begin - end :]
    return found


Float64 = npt.NDArray[np.float64]
Float32 = npt.NDArray[np.float32]


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


def mean_nll_and_perplexity(nll: Float64, *, of: str = "the response") -> tuple[float, float]:
    """Return the mean of the token NLLs (nats) and its exponential, Eq. 1. `of` names the text in messages.

    Raises UnscorableSampleError if either is not finite: a mean of infinities would rank the sample anywhere.
    """
    # Two ways to overflow: a token with probability 0 in the model's dtype gives an infinite mean. And exp of a finite
    # mean above 709 is infinite in float64.
    mean = float(np.mean(nll, dtype=np.float64))
    if not math.isfinite(mean):
        raise UnscorableSampleError(f"mean NLL of {of} is {mean}: try dtype bfloat16 or float32")
    if mean > math.log(np.finfo(np.float64).max):
        raise UnscorableSampleError(f"mean NLL of {of} is {mean:.1f}: its perplexity overflows float64")
    return mean, math.exp(mean)


def perplexity_row(sample: Sample, prompt: Prompt, nll: Float64) -> PerplexityRow:
    """Return the sample's row from the NLL of each response token of its prompt [|y|]. Raises UnscorableSampleError."""
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


def probability(nll: Float64) -> Float32:
    """Return p = exp(-NLL) in the type that tables store."""
    return np.exp(-nll).astype(np.float32)
