"""A needle in a haystack: does the model find a fact at any depth of a context of any length?"""

from __future__ import annotations

import math
import random
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import polars as pl
from pydantic import Field, model_validator

from gateau_dagster import tables
from gateau_dagster.config.base import Section
from gateau_dagster.config.values import LONGEST
from gateau_dagster.data.sample import Reject, Sample
from gateau_dagster.errors import GateauError, UnscorableSampleError
from gateau_dagster.evaluation.benchmark import Benchmark, Comparison, Outcome
from gateau_dagster.evaluation.haystack import Haystack, build_haystack, insert_needle
from gateau_dagster.evaluation.materials import MODELS, Materials
from gateau_dagster.evaluation.needle_section import needle_section
from gateau_dagster.progress import Progress, silent
from gateau_dagster.storage.stamp import By
from gateau_dagster.tables import Column

if TYPE_CHECKING:
    from gateau_dagster.config import Config
    from gateau_dagster.config.models import Template
    from gateau_dagster.models.loading import LoadedModel
    from gateau_dagster.models.prompt import Prompt

NEEDLE = (
    Column(name="model", dtype=pl.String(), description="base or checkpoint."),
    Column(name="length", dtype=pl.Int32(), description="Prompt length in tokens."),
    Column(name="depth", dtype=pl.Float64(), description="0: the fact at the start of the context, 1: at its end."),
    Column(name="repeats", dtype=pl.Int32(), description="Needles in this cell."),
    Column(
        name="accuracy",
        dtype=pl.Float64(),
        description="Share of needles whose answer tokens are all the most likely ones.",
    ),
    Column(name="answer_nll", dtype=pl.Float64(), description="Mean negative log-likelihood per answer token."),
)
_CITIES = ("Lisbon", "Nairobi", "Toronto", "Osaka", "Cusco", "Tallinn", "Hanoi", "Perth", "Bergen", "Tunis")
# Documents that make up the haystack: enough text for the longest prompts, whatever the data's size.
_DOCUMENTS = 256


class NeedlePair(Section):
    """A key that is asked for, and the values it may have."""

    key: str
    values: list[str] = Field(min_length=2)


class NeedleOptions(Section):
    """A fact hidden at a depth of a haystack of a length, and asked for at its end."""

    lengths: list[Annotated[int, Field(ge=1, le=LONGEST)]] = Field(
        default=[1024, 2048, 4096, 8192], min_length=1, description="Prompt lengths in tokens."
    )
    depths: list[float] = Field(default=[0.0, 0.25, 0.5, 0.75, 1.0], min_length=1)
    repeats: int = Field(default=3, ge=1, le=10_000, description="Needles per cell of the grid.")
    fact: str = Field(default=" The secret number of {key} is {value}. ", description="With {key} and {value}.")
    question: str = Field(default="What is the secret number of {key}?", description="With {key}.")
    answer: str = Field(default="{value}", description="With {key} and {value}.")
    pairs: list[NeedlePair] | None = Field(default=None, description="Default: cities and seven-digit numbers.")

    @model_validator(mode="after")
    def _placeholders(self) -> NeedleOptions:
        for name, text, wanted in (
            ("fact", self.fact, ("{key}", "{value}")),
            ("question", self.question, ("{key}",)),
            ("answer", self.answer, ("{value}",)),
        ):
            missing = [placeholder for placeholder in wanted if placeholder not in text]
            if missing:
                raise ValueError(f"{name} lacks {' and '.join(missing)}")
        if any(not 0 <= depth <= 1 for depth in self.depths):
            raise ValueError("depths lie between 0 (start of the context) and 1 (its end)")
        return self


def default_pairs() -> list[NeedlePair]:
    """Ten cities with eight seven-digit numbers each; the same on every machine."""
    rng = random.Random("needle")
    return [NeedlePair(key=city, values=[str(rng.randrange(10**6, 10**7)) for _ in range(8)]) for city in _CITIES]


def needle_grid(
    loaded: LoadedModel,
    name: str,
    haystack_texts: Iterable[str],
    options: NeedleOptions,
    *,
    max_length: int,
    template: Template,
    seed: int,
    progress: Progress = silent,
) -> Outcome:
    """Accuracy and NLL of the answer in every cell of depth x length, for the model called `name` (base, checkpoint).

    A prompt of length L has L tokens, answer included. The answer is teacher-forced: a needle is found when each of
    its tokens is the most likely one. Needles depend on `seed` and cell, not on the model, so that two models with
    one tokenizer get the same prompts. Lengths above `max_length`, or too short for the question, are skipped with
    their reason. Raises GateauError when all are.
    """
    lengths = sorted(set(options.lengths))
    hay = build_haystack(loaded.tokenizer, haystack_texts, tokens=4 * min(max(lengths), max_length))
    rows, skipped = [], []
    for place, length in enumerate(lengths):
        say = partial(_report, progress, place, len(lengths), f"{name}, {length} tokens")
        try:
            if length > max_length:
                raise NeedleDoesNotFitError(
                    f"{length} tokens are more than the {max_length} the model is shown: raise scoring.max_length or "
                    "lower evaluation.needle.lengths"
                )
            cells = {
                depth: needle_prompts(loaded, hay, options, length=length, depth=depth, template=template, seed=seed)
                for depth in sorted(set(options.depths))
            }
            rows.extend((name, length, *cell) for cell in _score_cells(loaded, cells, say))
        except NeedleDoesNotFitError as error:
            skipped.append(Reject(sample_id=f"{name}, length={length}", reason=str(error)))
    if not rows:
        raise GateauError(f"evaluation/needle: no length can be measured: {skipped[0].reason}")
    return Outcome(table=pl.DataFrame(rows, schema=tables.schema(NEEDLE), orient="row"), rejected=skipped)


def _report(progress: Progress, place: int, lengths: int, note: str, share: float) -> None:
    progress(place + share, lengths, "lengths", note)


def _score_cells(
    loaded: LoadedModel, cells: Mapping[float, Sequence[Prompt]], say: Callable[[float], None]
) -> Iterator[tuple[float, int, float, float]]:
    """Depth, repeats, accuracy and answer NLL of every cell of one length."""
    for done, (depth, prompts) in enumerate(cells.items(), start=1):
        scores = [score_answer(loaded, prompt) for prompt in prompts]
        count = len(scores)
        accuracy = sum(found for found, _ in scores) / count
        yield depth, count, accuracy, math.fsum(nll for _, nll in scores) / count
        say(done / len(cells))


class NeedleDoesNotFitError(ValueError):
    """A prompt length that cannot be made."""


def needle_prompts(
    loaded: LoadedModel,
    hay: Haystack,
    options: NeedleOptions,
    *,
    length: int,
    depth: float,
    template: Template,
    seed: int,
) -> list[Prompt]:
    """The `repeats` prompts of a cell, each of exactly `length` tokens, with the fact at `depth` of the hay.

    Raises NeedleDoesNotFitError when question, fact and answer alone are longer.
    """
    pairs = options.pairs or default_pairs()
    prompts = []
    for repeat in range(options.repeats):
        rng = random.Random(f"{seed}:{length}:{depth}:{repeat}")
        pair = rng.choice(pairs)
        value = rng.choice(pair.values)
        bare = _bare_prompt(loaded, options, key=pair.key, value=value, template=template)
        room = length - bare.length
        if room < 0:
            raise NeedleDoesNotFitError(
                f"question, fact and answer alone take {bare.length} tokens, more than {length}: raise "
                "evaluation.needle.lengths"
            )
        straw = hay.without(pair.key).tokens(room, rng)
        prompts.append(bare.with_context(insert_needle(straw, bare.context, depth=depth)))
        assert prompts[-1].length == length
    return prompts


def _bare_prompt(loaded: LoadedModel, options: NeedleOptions, *, key: str, value: str, template: Template) -> Prompt:
    """The prompt whose whole context is the fact."""
    from gateau_dagster.models.prompt import build_prompt

    fact, question, answer = (
        text.replace("{key}", key).replace("{value}", value)
        for text in (options.fact, options.question, options.answer)
    )
    sample = Sample(sample_id="needle", source="needle", context=fact, instruction=question, response=answer)
    try:
        return build_prompt(loaded.tokenizer, sample, max_length=sys.maxsize, template=template)
    except UnscorableSampleError as error:
        raise GateauError(f"evaluation.needle: with key {key!r} and value {value!r}, {error}") from error


def score_answer(loaded: LoadedModel, prompt: Prompt) -> tuple[bool, float]:
    """Whether every answer token is the most likely one, and their mean NLL in nats.

    Raises NeedleDoesNotFitError when the prompt does not fit into memory.
    """
    import torch

    from gateau_dagster.models.forward import head, response_states, token_nll
    from gateau_dagster.models.memory import out_of_memory_reason, unless_out_of_memory

    @torch.no_grad()
    def score() -> tuple[bool, float]:
        states = response_states(loaded, [prompt])
        found = head(loaded, states).argmax(-1).tolist() == list(prompt.response)
        return found, float(token_nll(loaded, states, prompt.response).mean())

    scored = unless_out_of_memory(score)
    if scored is None:
        advice = "lower evaluation.needle.lengths, or use a device with more memory"
        raise NeedleDoesNotFitError(out_of_memory_reason(prompt.length, advice))
    return scored


def _reads(config: Config, options: NeedleOptions) -> dict[str, By]:
    del config, options
    return {"raw_long_sft": "fingerprint"}


def _settings(config: Config, options: NeedleOptions) -> dict[str, Any]:
    del options
    return {"training.seed": config.training.seed}


def _check(config: Config, options: NeedleOptions) -> None:
    """Raises GateauError for lengths above scoring.max_length; of the default ones one has to be within it."""
    longest, lengths = config.scoring.max_length, sorted(set(options.lengths))
    above = [length for length in lengths if length > longest]
    if above and (above == lengths or "lengths" in options.model_fields_set):
        raise GateauError(
            f"evaluation.needle.lengths: no prompt has {', '.join(map(str, above))} tokens, since scoring.max_length "
            f"is {longest}: give lengths up to it, or raise it"
        )


def _run(materials: Materials, options: NeedleOptions) -> Outcome:
    config, texts = materials.config, _documents(materials)
    results = [
        needle_grid(
            materials.model(name),
            name,
            texts,
            options,
            max_length=config.scoring.max_length,
            template=config.scoring.template,
            seed=config.training.seed,
            progress=materials.progress,
        )
        for name in MODELS
    ]
    return Outcome(
        table=pl.concat([result.table for result in results]),
        rejected=[reject for result in results for reject in result.rejected],
    )


def _documents(materials: Materials) -> list[str]:
    """The first documents; shards are read only until there are enough."""
    texts: list[str] = []
    for shard in materials.shards("raw_long_sft", ["context"]):
        texts += shard["context"].to_list()
        if len(texts) >= _DOCUMENTS:
            break
    return texts[:_DOCUMENTS]


BENCHMARK = Benchmark(
    name="needle",
    title="Needle in a haystack",
    description="A fact hidden at a depth of a haystack of a length, and asked for at its end: base against "
    "checkpoint.",
    options=NeedleOptions,
    settings=_settings,
    check=_check,
    comparison=Comparison(
        columns=NEEDLE, finite=("accuracy", "answer_nll"), reads=_reads, run=_run, section=needle_section
    ),
    default=True,
)
