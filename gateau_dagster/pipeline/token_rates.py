"""Count tokens from the lengths of texts, by a model's tokenizer on a few of them."""

# For whom: `gateau plan` should answer in seconds, but tokenising all texts of large data may take hours. So all texts
# count by their characters, which the index has. Up to 32 of them are tokenised for the ratio.
#
# What is lost: languages and code differ in characters per token, so single samples may be far off. The sum over the
# data is what plans need.

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import polars as pl

from gateau_dagster.data.index import read_samples
from gateau_dagster.data.sample import Sample, text_digest
from gateau_dagster.errors import GateauError, UnscorableSampleError
from gateau_dagster.models.model_facts import local_facts
from gateau_dagster.pipeline.feature import prepare_inputs
from gateau_dagster.pipeline.state import State
from gateau_dagster.scoring.sample_table import SampleTokens
from gateau_dagster.storage.local import recall, remember

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


_SAMPLES, _SECONDS = 32, 2.0
_CHARACTERS = 20_000  # per tokenised context; the cut changes a token or two
# How far into the input the sample is taken from: everything before a record has to be read.
_READ_AHEAD = 64_000_000
_ANY_LENGTH = 2**40


@dataclass(frozen=True, kw_only=True)
class TokenRates:
    """Rates of tokens per text. The defaults are typical of English and a byte-pair vocabulary."""

    context: float = 4.0  # characters per token
    tail: float = 4.0  # characters per token, of instruction and response
    response: float = 0.5  # share of the response in the tail's tokens
    around: Mapping[str, int] = field(  # tokens around the texts: see SampleTokens
        default_factory=lambda: {"frame": 20, "opening": 0, "alone": 8, "bos": 1, "special": 3, "task": 45}
    )
    seconds: float = 0.0  # seconds per character for tokenising, on one core
    samples: int = 0  # tokenised for this; 0: assumed

    def sample_tokens(
        self, samples: pl.DataFrame, limit: int, shared: npt.NDArray[np.bool_] | bool = False
    ) -> SampleTokens:
        """Return the tokens of samples of the index, assuming one ratio of instruction to response in all tails."""
        characters, tails = (samples[name].to_numpy().astype(np.float64) for name in ("characters", "tail_characters"))
        texts = np.round(tails / self.tail)
        response = np.maximum(np.round(texts * self.response), 1.0)
        return SampleTokens(
            context=np.round((characters - tails) / self.context),
            instruction=texts - response,
            response=response,
            limit=limit,
            shared=shared,
            shows_attention=True,  # the tokenizer does not affect what a model shows
            shape=None,
            **self.around,
        )


def token_rates(state: State, name: str) -> TokenRates:
    """Return the rates for this model's tokenizer, input and template; measured in about a second, and cached.

    A few changed samples do not change the cache key, so a run after an edit measures nothing again.
    """
    config, accepted = state.config, state.index.accepted
    about = [f"{np.log2(1.0 + size):.1f}" for size in (accepted.height, float(accepted["characters"].sum()))]
    opening, path = config.models[name].opening, str(config.long_sft.path)
    file = config.work_folder / "cache" / "token_rates.json"
    key = text_digest([state.model_digests[name], config.scoring.template, opening, path, *about])
    known = recall(file, key)
    if isinstance(known, dict) and {*known} == {*TokenRates.__dataclass_fields__}:
        return TokenRates(**known)
    prepare_inputs(config, "tokenizers")
    tokenizer = local_facts(config, name).tokenizer
    try:
        rates = TokenRates() if tokenizer is None else _measured(state, tokenizer, opening)
    except GateauError:  # the run reports it
        return TokenRates()
    if rates.samples:
        remember(file, key, asdict(rates))
    return rates


def chosen(accepted: pl.DataFrame, count: int = _SAMPLES) -> pl.DataFrame:
    """Return `count` of the index's samples, evenly spaced by length, from the first part of each file."""
    before = pl.col("characters").cum_sum().over("file") - pl.col("characters")
    near = accepted.filter(before < _READ_AHEAD).sort("characters", "sample_id")
    places = np.unique(np.linspace(0, near.height - 1, min(count, near.height)).round().astype(int))
    return near[places.tolist()]


def _measured(state: State, tokenizer: PreTrainedTokenizerBase, opening: str) -> TokenRates:
    """Return the rates over the chosen samples, as many as time allows. `opening`: see build_prompt.

    Raises GateauError without a usable chat template, and if the input changes meanwhile.
    """
    from gateau_dagster.models.prompt import build_prompt, encode
    from gateau_dagster.scoring.cherry_selection import alone_prompt, cherry_prompt

    template = state.config.scoring.template
    build = partial(build_prompt, tokenizer, max_length=_ANY_LENGTH, template=template, opening=opening)
    blank = Sample(sample_id="", source="", context="", instruction="", response="x")
    frame, alone = build(blank), alone_prompt(tokenizer, blank, max_length=_ANY_LENGTH)
    letter, whole = len(encode(tokenizer, "x")), tokenizer("x\nx", verbose=False)["input_ids"]
    around = {
        "frame": frame.length - len(frame.response),
        "opening": len(encode(tokenizer, opening)),
        "alone": alone.length - len(alone.response),
        "bos": int(tokenizer.bos_token_id is not None),
        "special": max(0, len(whole) - 2 * letter),  # pyright: ignore[reportArgumentType]
        "task": len(encode(tokenizer, cherry_prompt(replace(blank, context="x", instruction="x")))) - 2 * letter,
    }
    # Characters of context and tail, tokens of context, tail and response, seconds, samples.
    sums, end = np.zeros(7), time.monotonic() + _SECONDS
    for sample in read_samples(state.config.located_long_sft, state.index, chosen(state.index.accepted)):
        start, started = max(0, (len(sample.context) - _CHARACTERS) // 2), time.perf_counter()
        part = replace(sample, context=sample.context[start : start + _CHARACTERS])
        with suppress(UnscorableSampleError):
            prompt = build(part)
            characters = len(part.context), len(part.instruction) + len(part.response)
            tail = prompt.length - len(prompt.context) - around["frame"]
            tokens = len(prompt.context), tail, len(prompt.response)
            sums += [*characters, *tokens, time.perf_counter() - started, 1]
        if time.monotonic() > end:
            break
    context, texts, context_tokens, tail, response, seconds, samples = sums.tolist()
    if not context_tokens or tail <= 0:
        return TokenRates(around=around)
    return TokenRates(
        context=context / context_tokens,
        tail=texts / tail,
        response=min(1.0, response / tail),
        around=around,
        seconds=seconds / (context + texts),
        samples=int(samples),
    )
