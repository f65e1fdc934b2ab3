"""Prepare a model for estimates: tokens from the lengths of texts, by its tokenizer on a few of them, and FLOPs.

The same lengths show how much token limits truncate, and how much exceeds a model's positions.
"""

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
from gateau_dagster.models.flops import ModelShape, whole_text_flops
from gateau_dagster.models.known_model import known_model, known_positions, known_tokenizer, own_window, parameter_count
from gateau_dagster.pipeline.feature import prepare_inputs
from gateau_dagster.pipeline.losses import PromptLimit, Truncation, truncation_among
from gateau_dagster.pipeline.model_checks import attention_unseen
from gateau_dagster.pipeline.state import State
from gateau_dagster.readable import percentage, plural
from gateau_dagster.scoring.sample_table import Numbers, PlannedWork, SampleTokens
from gateau_dagster.storage.local import recall, remember

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


_SAMPLES, _SECONDS = 32, 2.0
_CHARACTERS = 20_000  # per tokenised context; the cut changes a token or two
# How far into the input the sample is taken from: everything before a record has to be read.
_READ_AHEAD = 64_000_000
_ANY_LENGTH = 2**40


class ScoredModel:
    """A configured model that scores samples of a state.

    known: the parts of the model that are on this machine.
    parameters: number of parameters, if its weights are on this machine.
    shape: the shape of a decoder that generates text, if known.
    limit: most tokens of a prompt that the model is shown.

    Raises GateauError for damaged weights.
    """

    def __init__(self, state: State, name: str) -> None:
        config, section = state.config, state.config.models[name]
        self.name, self.causal = name, section.task == "causal"
        self.known, self.parameters = known_model(config, name), parameter_count(config, name)
        self.rates, self.limit, self.shape = token_rates(state, name), config.scoring.max_length, None
        if not self.causal or section.context == "window":
            self.limit = min(self.limit, section.window or own_window(config, name) or self.limit)
        self._shows_attention = True
        if self.causal and self.known.config is not None:
            self.shape = ModelShape.known(self.known.config)
            self._shows_attention = attention_unseen(config, name, state.model_digests[name]) is None

    def sample_tokens(self, samples: pl.DataFrame, shared: npt.NDArray[np.bool_] | bool = False) -> SampleTokens:
        """Return the token counts of samples of the index."""
        found = self.rates.sample_tokens(samples, self.limit, shared)
        return replace(found, shows_attention=self._shows_attention, shape=self.shape)

    def flops(self, planned: PlannedWork) -> Numbers | None:
        """Return the FLOPs of each sample; None if they are not known."""
        if self.causal:
            return None if self.shape is None else planned.flops(self.shape)
        if self.known.config is None or self.parameters is None:
            return None
        text = self.known.config.get_text_config()
        weights = self.parameters - text.vocab_size * text.hidden_size  # without the word embedding
        layers, hidden = text.num_hidden_layers, text.hidden_size
        each = [one.count * whole_text_flops(one.length, weights, layers, hidden) for one in planned.passes]
        return np.sum(each, axis=0)

    @property
    def unknown(self) -> str:
        """Return why FLOPs are unknown; empty if they are known."""
        if self.known.config is None or (self.shape if self.causal else self.parameters) is not None:
            return self.known.missing
        return "its shape is not known" if self.causal else "its weights are not on this machine yet"


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
    tokenizer = known_tokenizer(config, name)
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


@dataclass(frozen=True, kw_only=True)
class BeyondPositions:
    """Prompts that are longer than a model's rotary embedding supports.

    Attributes:
        positions: positions of the embedding, from `rotary_positions`.
        samples: number of samples with longer prompts, out of `scored`.
        tokens: number of tokens after the last position, out of `prompt_tokens` in all prompts.
        longest: length of the longest prompt in tokens.
        cure: a change of the configuration that avoids this without a longer model.
    """

    positions: int
    samples: int
    scored: int
    tokens: int
    prompt_tokens: int
    longest: int
    cure: str

    def sentence(self, model: str) -> str:
        """Return the shares of samples and of tokens, and what to do."""
        samples, tokens = percentage(self.samples / self.scored), percentage(self.tokens / self.prompt_tokens)
        return (
            f"models.{model}: about {self.samples:,} of {plural(self.scored, 'sample')} ({samples}) are longer than "
            f"the {self.positions:,} positions that its rotary embedding is made for, and about {self.tokens:,} of "
            f"{self.prompt_tokens:,} tokens ({tokens}) are beyond them. It is not trained on such positions, and its "
            f"perplexities there say little. Take a model that is made for {self.longest:,} tokens "
            f"(`homologous:<model>` trains one), or {self.cure}"
        )


@dataclass(frozen=True, kw_only=True)
class ExpectedTruncation:
    """The part of the samples that a model will not see or cannot read.

    Attributes:
        model: the model's name in `models`.
        truncation: the truncation of its prompts.
        unscorable: number of samples with an instruction and response that are too long even without context.
        counted: whether its tokenizer was measured; otherwise a typical number of characters per token is assumed.
        beyond: prompts beyond its rotary positions; None if there are none.
    """

    model: str
    truncation: Truncation
    unscorable: int
    counted: bool
    beyond: BeyondPositions | None = None

    @property
    def lines(self) -> list[tuple[str, bool]]:
        """Return the `sentences`, each with a flag that is true for a warning."""
        found = [(sentence, self.truncation.notable) for sentence in self.sentences]
        return found if self.beyond is None else [*found, (self.beyond.sentence(self.model), True)]

    @property
    def sentences(self) -> list[str]:
        """Return sentences about the expected loss; empty if none is expected."""
        found = []
        if self.truncation.cut:
            found.append(f"models.{self.model}: {self.truncation.sentence('about ')}")
        if self.unscorable:
            samples = plural(self.unscorable, "sample")
            found.append(
                f"models.{self.model}: about {samples} will be rejected, for instruction and response alone are longer "
                f"than allowed: {self.truncation.limit}"
            )
        return found


def expected_truncation(state: State, model: str) -> ExpectedTruncation:
    """Return the expected truncation of all samples, from the texts' lengths and the model's tokenizer on some of them.

    Raises:
        GateauError: the model is missing.
    """
    limit, rates = PromptLimit.of(state.config, model), token_rates(state, model)
    tokens = rates.sample_tokens(state.index.accepted, limit.tokens)
    prompts = tokens.prompts(opening=True)
    fits = prompts.tail > 0
    kept = pl.Series(prompts.context[fits])
    return ExpectedTruncation(
        model=model,
        truncation=truncation_among(
            kept, pl.Series(tokens.context[fits]) - kept, limit=limit.why, intended=limit.intended
        ),
        unscorable=int((~fits).sum()),
        counted=rates.samples > 0,
        beyond=_beyond(state, model, prompts.prompt[fits], limit.tokens),
    )


def _beyond(state: State, model: str, lengths: Numbers, limit: int) -> BeyondPositions | None:
    """Compare the prompts' `lengths`, in tokens [samples], with a model's positions; `limit`: the longest prompt."""
    if not lengths.size or lengths.max() <= (positions := known_positions(state.config, model) or limit):
        return None
    window = state.config.models[model].context == "window"
    key = f"models.{model}.window" if window else "scoring.max_length"
    cure = f"lower {key} to {positions:,}"
    if not window and model != "long":
        cure = f"give models.{model} `context: window`, or {cure}"
    return BeyondPositions(
        positions=positions,
        samples=int((lengths > positions).sum()),
        scored=lengths.size,
        tokens=int((lengths - positions).clip(min=0).sum()),
        prompt_tokens=int(lengths.sum()),
        longest=int(lengths.max()),
        cure=cure,
    )
