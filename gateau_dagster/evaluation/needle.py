"""A needle in a haystack: does the model find a fact at any depth of a context of any length?"""

import math
import random
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import polars as pl
import torch
from transformers import PreTrainedTokenizerBase

from gateau_dagster import tables
from gateau_dagster.config import NeedleConfig, NeedlePair
from gateau_dagster.config.models import Template
from gateau_dagster.data.sample import Reject, Sample
from gateau_dagster.errors import GateauError, UnscorableSampleError
from gateau_dagster.models.forward import head, response_states, token_nll
from gateau_dagster.models.loading import LoadedModel
from gateau_dagster.models.memory import out_of_memory_reason, unless_out_of_memory
from gateau_dagster.models.prompt import Prompt, build_prompt, encode
from gateau_dagster.progress import Progress, silent

# A sentence keeps the white space after it, so that joined sentences give the text back.
_SENTENCE = re.compile(r".+?(?:[.!?。！？]+\s+|\n+|$)", re.DOTALL)


@dataclass(frozen=True, kw_only=True)
class Haystack:
    """Sentences with their token ids."""

    sentences: tuple[tuple[str, tuple[int, ...]], ...]

    def without(self, key: str) -> "Haystack":
        """The sentences that do not name `key` as a word, in either case: they could contradict the needle."""
        word = re.compile(rf"(?<!\w){re.escape(key.strip())}(?!\w)", re.IGNORECASE)
        return Haystack(sentences=tuple(part for part in self.sentences if not word.search(part[0])))

    def tokens(self, count: int, rng: random.Random) -> tuple[int, ...]:
        """`count` token ids from a sentence drawn by `rng` on, starting over at the end of the text.

        Raises GateauError when there are none to start with.
        """
        if count == 0:
            return ()
        if not self.sentences:
            raise GateauError(
                "evaluation/needle: no text is left for the haystack once sentences that name the needle's key are "
                "out. Choose rarer keys in evaluation.needle.pairs, or take needle out of evaluation.benchmarks."
            )
        place = rng.randrange(len(self.sentences))
        taken: list[int] = []
        while len(taken) < count:
            taken.extend(self.sentences[place % len(self.sentences)][1])
            place += 1
        return tuple(taken[:count])


def build_haystack(tokenizer: PreTrainedTokenizerBase, texts: Iterable[str], *, tokens: int) -> Haystack:
    """Sentences of `texts`, in order, until `tokens` of them are there or the texts end."""
    sentences: list[tuple[str, tuple[int, ...]]] = []
    total = 0
    for text in texts:
        for match in _SENTENCE.finditer(text):
            ids = encode(tokenizer, match.group())
            if ids:
                sentences.append((match.group(), ids))
                total += len(ids)
            if total >= tokens:
                return Haystack(sentences=tuple(sentences))
    return Haystack(sentences=tuple(sentences))


def insert_needle(hay: Sequence[int], fact: Sequence[int], *, depth: float) -> tuple[int, ...]:
    """The fact's tokens after the first `round(depth * len(hay))` tokens of the hay: 0 is its start, 1 its end."""
    place = round(depth * len(hay))
    return (*hay[:place], *fact, *hay[place:])


_CITIES = ("Lisbon", "Nairobi", "Toronto", "Osaka", "Cusco", "Tallinn", "Hanoi", "Perth", "Bergen", "Tunis")


@dataclass(frozen=True, kw_only=True)
class NeedleResult:
    """`table`: tables.NEEDLE. `skipped`: cells that could not be measured, as `length=…` and the reason."""

    table: pl.DataFrame
    skipped: list[Reject]


def default_pairs() -> list[NeedlePair]:
    """Ten cities with eight seven-digit numbers each; the same on every machine."""
    rng = random.Random("needle")
    return [NeedlePair(key=city, values=[str(rng.randrange(10**6, 10**7)) for _ in range(8)]) for city in _CITIES]


def needle_grid(
    loaded: LoadedModel,
    name: str,
    haystack_texts: Iterable[str],
    *,
    config: NeedleConfig,
    max_length: int,
    template: Template,
    seed: int,
    progress: Progress = silent,
) -> NeedleResult:
    """Accuracy and NLL of the answer in every cell of depth x length, for the model called `name` (base, checkpoint).

    A prompt of length L has L tokens, answer included. The answer is teacher-forced: a needle is found when each of
    its tokens is the most likely one. Needles depend on `seed` and cell, not on the model, so that two models with
    one tokenizer get the same prompts. Lengths above `max_length`, or too short for the question, are skipped with
    their reason. Raises GateauError when all are.
    """
    lengths = sorted(set(config.lengths))
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
                depth: needle_prompts(loaded, hay, config, length=length, depth=depth, template=template, seed=seed)
                for depth in sorted(set(config.depths))
            }
            rows.extend((name, length, *cell) for cell in _score_cells(loaded, cells, say))
        except NeedleDoesNotFitError as error:
            skipped.append(Reject(sample_id=f"{name}, length={length}", reason=str(error)))
    if not rows:
        raise GateauError(f"evaluation/needle: no length can be measured: {skipped[0].reason}")
    return NeedleResult(table=pl.DataFrame(rows, schema=tables.schema(tables.NEEDLE), orient="row"), skipped=skipped)


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
    config: NeedleConfig,
    *,
    length: int,
    depth: float,
    template: Template,
    seed: int,
) -> list[Prompt]:
    """The `repeats` prompts of a cell, each of exactly `length` tokens, with the fact at `depth` of the hay.

    Raises NeedleDoesNotFitError when question, fact and answer alone are longer.
    """
    pairs = config.pairs or default_pairs()
    prompts = []
    for repeat in range(config.repeats):
        rng = random.Random(f"{seed}:{length}:{depth}:{repeat}")
        pair = rng.choice(pairs)
        value = rng.choice(pair.values)
        bare = _bare_prompt(loaded, config, key=pair.key, value=value, template=template)
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


def _bare_prompt(loaded: LoadedModel, config: NeedleConfig, *, key: str, value: str, template: Template) -> Prompt:
    """The prompt whose whole context is the fact."""
    fact, question, answer = (
        text.replace("{key}", key).replace("{value}", value) for text in (config.fact, config.question, config.answer)
    )
    sample = Sample(sample_id="needle", source="needle", context=fact, instruction=question, response=answer)
    try:
        return build_prompt(loaded.tokenizer, sample, max_length=sys.maxsize, template=template)
    except UnscorableSampleError as error:
        raise GateauError(f"evaluation.needle: with key {key!r} and value {value!r}, {error}") from error


@torch.no_grad()
def score_answer(loaded: LoadedModel, prompt: Prompt) -> tuple[bool, float]:
    """Whether every answer token is the most likely one, and their mean NLL in nats.

    Raises NeedleDoesNotFitError when the prompt does not fit into memory.
    """

    def score() -> tuple[bool, float]:
        states = response_states(loaded, [prompt])
        found = head(loaded, states).argmax(-1).tolist() == list(prompt.response)
        return found, float(token_nll(loaded, states, prompt.response).mean())

    scored = unless_out_of_memory(score)
    if scored is None:
        advice = "lower evaluation.needle.lengths, or use a device with more memory"
        raise NeedleDoesNotFitError(out_of_memory_reason(prompt.length, advice))
    return scored
