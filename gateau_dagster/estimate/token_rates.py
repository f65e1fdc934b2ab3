"""Tokens from characters: the rates of a model's own tokenizer on a few of the samples' texts."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, cast

import numpy as np
import polars as pl

from gateau_dagster.data.forms import to_sample
from gateau_dagster.data.ingest import read_wanted
from gateau_dagster.data.sample import Sample, text_digest
from gateau_dagster.demo.inputs import ensure_demo_tokenizer
from gateau_dagster.errors import GateauError
from gateau_dagster.models.known_model import known_tokenizer
from gateau_dagster.pipeline.state import State
from gateau_dagster.storage.json_cache import recall, remember

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from gateau_dagster.config.models import Template

_SAMPLES = 32
_SECONDS = 2.0
_CHARACTERS = 20_000  # of a context that are tokenised: where a text is cut changes a token or two
# How far into the input the sample is looked for: what stands before a record has to be read through.
_READ_AHEAD = 64_000_000


@dataclass(frozen=True, kw_only=True)
class TokenRates:
    """How texts become tokens. The defaults are those of English and a byte-pair vocabulary."""

    context: float = 4.0  # characters a token
    tail: float = 4.0  # of instruction and response
    response: float = 0.5  # share of the response in the tail's tokens
    frame: int = 20  # tokens of the prompt around the texts, opening included
    opening: int = 0  # of it those of ModelConfig.opening
    alone: int = 8  # tokens around a response without context and instruction
    bos: int = 1
    special: int = 3  # around instruction and response for a model that reads both as a whole
    seconds: float = 0.0  # a character takes to tokenise, on one core
    samples: int = 0  # tokenised for this; 0: assumed


def token_rates(state: State, name: str) -> TokenRates:
    """Measured in about a second for this model's tokenizer, input and template, and remembered."""
    file = state.config.work_folder / "cache" / "token_rates.json"
    opening = state.config.models[name].opening
    key = text_digest([state.model_digests[name], state.config.scoring.template, opening, *_input(state)])
    known = recall(file, key)
    if isinstance(known, dict) and {*known} == {*TokenRates.__dataclass_fields__}:
        return TokenRates(**known)
    ensure_demo_tokenizer(state.config)
    tokenizer = known_tokenizer(state.config, name)
    if tokenizer is None:
        return TokenRates()
    rates = _measured(state, tokenizer, opening)
    remember(file, key, asdict(rates))
    return rates


def _input(state: State) -> list[str]:
    """Says of the input what a few changed samples do not change: a re-run after an edit measures nothing anew."""
    accepted, path = state.index.accepted, state.config.long_sft.path
    total = float(accepted["characters"].sum())
    return [str(path), *(f"{4 * np.log2(max(value, 1.0)):.0f}" for value in (accepted.height, total))]


def chosen(accepted: pl.DataFrame, count: int = _SAMPLES) -> pl.DataFrame:
    """`count` of the index's samples, evenly over their lengths, from the first part of each file."""
    before = pl.col("characters").cum_sum().over("file") - pl.col("characters")
    near = accepted.filter(before < _READ_AHEAD).sort("characters", "sample_id")
    places = np.unique(np.linspace(0, near.height - 1, min(count, near.height)).round().astype(int))
    return near[places.tolist()]


def _measured(state: State, tokenizer: PreTrainedTokenizerBase, opening: str) -> TokenRates:
    """Sums over the sample; a context counts by a stretch from its middle. `opening`: see build_prompt."""
    from gateau_dagster.models.prompt import build_prompt

    template, everything = state.config.scoring.template, 2**40
    try:
        around = _around(tokenizer, template, opening)
    except ValueError:  # no usable chat template: the run will say so
        return TokenRates()
    frame = around.frame
    contexts, tails, responses, samples, seconds = np.zeros(2), np.zeros(2), 0, 0, 0.0
    for sample in _texts(state):
        middle = max(0, (len(sample.context) - _CHARACTERS) // 2)
        shown = sample.context[middle : middle + _CHARACTERS]
        part = Sample(sample_id="", source="", context=shown, instruction=sample.instruction, response=sample.response)
        started = time.perf_counter()
        try:
            prompt = build_prompt(tokenizer, part, max_length=everything, template=template, opening=opening)
        except ValueError:
            continue
        seconds += time.perf_counter() - started
        tail = len(prompt.prefix) + len(prompt.suffix) + len(prompt.response) - frame
        contexts += (len(shown), len(prompt.context))
        tails += (len(part.instruction) + len(part.response), tail)
        responses, samples = responses + len(prompt.response), samples + 1
    if not contexts[1] or tails[1] <= 0:
        return around
    return replace(
        around,
        context=float(contexts[0] / contexts[1]),
        tail=float(tails[0] / tails[1]),
        response=min(1.0, float(responses / tails[1])),
        seconds=seconds / float(contexts[0] + tails[0]),
        samples=samples,
    )


def _around(tokenizer: PreTrainedTokenizerBase, template: Template, opening: str) -> TokenRates:
    """What stands around the texts; raises ValueError without a usable chat template."""
    from gateau_dagster.models.prompt import build_prompt, encode
    from gateau_dagster.scoring.response_alone import alone_prompt

    blank = Sample(sample_id="", source="", context="", instruction="", response="x")
    empty = build_prompt(tokenizer, blank, max_length=2**40, template=template, opening=opening)
    letter = len(encode(tokenizer, "x"))
    whole = tokenizer("x\nx", verbose=False)["input_ids"]
    return TokenRates(
        frame=len(empty.prefix) + len(empty.suffix),
        opening=len(encode(tokenizer, opening)),
        alone=alone_prompt(tokenizer, blank, max_length=2**40).length - letter,
        bos=int(tokenizer.bos_token_id is not None),
        special=max(0, len(whole) - 2 * letter),  # pyright: ignore[reportArgumentType]
    )


def _texts(state: State) -> Iterator[Sample]:
    """The chosen samples, as many as can be read and tokenised in the time."""
    end = time.monotonic() + _SECONDS
    wanted = chosen(state.index.accepted)
    try:
        for sample in read_wanted(state.index.files, wanted, to_sample):
            yield cast(Sample, sample)
            if time.monotonic() > end:
                return
    except GateauError:
        return  # the input is changing: the run will say so
