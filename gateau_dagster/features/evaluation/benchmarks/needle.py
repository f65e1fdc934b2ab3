"""Measure recall of a fact at any depth of a context of any length (needle in a haystack), by teacher forcing."""

# Why teacher forcing: one pass measures an answer, where decoding needs one for each token. If every token of the
# answer is the most likely one, greedy decoding gives this answer, so a found fact means the same. The pass also gives
# an NLL, which tells apart models that find every fact, or none.
#
# When another way is better: benchmarks that generate, if the form of an answer matters as well.

from __future__ import annotations

import math
import random
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import polars as pl
from pydantic import AfterValidator, Field, model_validator

from gateau_dagster import tables
from gateau_dagster.config.base import Section
from gateau_dagster.config.values import LONGEST
from gateau_dagster.data.sample import Reject, Sample
from gateau_dagster.errors import GateauError, ShortOfMemoryError, UnscorableSampleError, no_secret
from gateau_dagster.features.evaluation.benchmark import (
    MODELS,
    Materials,
    Measured,
    MeasuredBenchmark,
    PageFigure,
    PageSection,
    PageTable,
)
from gateau_dagster.readable import PageAmount, PageChart, percent
from gateau_dagster.storage.stamp import By
from gateau_dagster.tables import Column

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from transformers import PreTrainedTokenizerBase

    from gateau_dagster.models.loaded import LoadedModel
    from gateau_dagster.models.prompt import Prompt


# The haystack consists of sentences, cut to a number of tokens.


# A sentence keeps the white space after it, so that joined sentences equal the text. The expression reads no character
# more than twice, because a table of contents has long runs of full stops.
_SENTENCE = re.compile(r".(?:[.!?。！？]++(?!\s)|[^.!?。！？\n]++)*+(?:[.!?。！？]++\s+|\n+|$)", re.DOTALL)


@dataclass(frozen=True, kw_only=True)
class Haystack:
    """Sentences with their token ids."""

    sentences: tuple[tuple[str, tuple[int, ...]], ...]

    def without(self, key: str) -> Haystack:
        """Return the haystack without sentences that contain the word `key` in any case.

        Such sentences could contradict the needle.
        """
        word = re.compile(rf"(?<!\w){re.escape(key.strip())}(?!\w)", re.IGNORECASE)
        return Haystack(sentences=tuple(part for part in self.sentences if not word.search(part[0])))

    def tokens(self, count: int, rng: random.Random) -> tuple[int, ...]:
        """Return `count` token ids from a random sentence onwards; the text repeats after its end.

        Raises:
            GateauError: the haystack has no sentences.
        """
        if count == 0:
            return ()
        if not self.sentences:
            raise GateauError(
                "evaluation.no_text",
                "evaluation/needle: no text is left for the haystack without the sentences that name the "
                "needle's key. Choose rarer keys in evaluation.needle.pairs, or remove needle from "
                "evaluation.benchmarks.",
            )
        place = rng.randrange(len(self.sentences))
        taken: list[int] = []
        while len(taken) < count:
            taken.extend(self.sentences[place % len(self.sentences)][1])
            place += 1
        return tuple(taken[:count])


def sentences_of(text: str) -> Iterator[str]:
    """Return the text's sentences, each with the white space after it."""
    return (match.group() for match in _SENTENCE.finditer(text))


def build_haystack(tokenizer: PreTrainedTokenizerBase, texts: Iterable[str], *, tokens: int) -> Haystack:
    """Return the first sentences of `texts` until they have `tokens` tokens or the texts end."""
    from gateau_dagster.models.prompt import encode

    sentences: list[tuple[str, tuple[int, ...]]] = []
    total = 0
    for text in texts:
        for sentence in sentences_of(text):
            ids = encode(tokenizer, sentence)
            if ids:
                sentences.append((sentence, ids))
                total += len(ids)
            if total >= tokens:
                return Haystack(sentences=tuple(sentences))
    return Haystack(sentences=tuple(sentences))


def insert_needle(hay: Sequence[int], fact: Sequence[int], *, depth: float) -> tuple[int, ...]:
    """Return the hay with the fact after the first `round(depth * len(hay))` tokens; 0 is the start, 1 the end."""
    place = round(depth * len(hay))
    return (*hay[:place], *fact, *hay[place:])


# Facts, depths and questions are options.


_CITIES = ("Lisbon", "Nairobi", "Toronto", "Osaka", "Cusco", "Tallinn", "Hanoi", "Perth", "Bergen", "Tunis")


class NeedlePair(Section):
    """A key that a question names, and its possible values."""

    key: Annotated[str, AfterValidator(no_secret)] = Field(
        description="What the question asks for.", examples=["passport"]
    )
    values: list[str] = Field(min_length=2, description="What the answer may be.", examples=[["blue", "green"]])


class NeedleOptions(Section):
    """Options of `evaluation.needle`: lengths, depths, and the texts of fact, question and answer."""

    lengths: list[Annotated[int, Field(ge=1, le=LONGEST)]] = Field(
        default=[1024, 2048, 4096, 8192], min_length=1, description="Prompt lengths in tokens."
    )
    depths: list[float] = Field(
        default=[0.0, 0.25, 0.5, 0.75, 1.0], min_length=1, description="Places of the needle: 0 is the prompt's start."
    )
    repeats: int = Field(default=3, ge=1, le=10_000, description="Needles per cell of the grid.")
    fact: str = Field(
        default=" The secret number of {key} is {value}. ", description="Text that contains {key} and {value}."
    )
    question: str = Field(default="What is the secret number of {key}?", description="Text that contains {key}.")
    answer: str = Field(default="{value}", description="Text that contains {key} and {value}.")
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
                raise GateauError("evaluation.length", f"{name} lacks {' and '.join(missing)}")
        if any(not 0 <= depth <= 1 for depth in self.depths):
            raise GateauError("evaluation.length", "depths must be between 0 (start of the context) and 1 (its end)")
        return self


def default_pairs() -> list[NeedlePair]:
    """Return ten cities with eight seven-digit numbers each; the same on every machine."""
    rng = random.Random("needle")
    return [NeedlePair(key=city, values=[str(rng.randrange(10**6, 10**7)) for _ in range(8)]) for city in _CITIES]


# The report's section on needles in a haystack.


_COLUMNS = {
    "model": "model",
    "length": "prompt (tokens)",
    "depth": "depth",
    "repeats": "needles",
    "accuracy": "found",
    "answer_nll": "answer NLL (nats per token)",
}


def needle_chart(needle: pl.DataFrame) -> PageChart:
    """Return each model's share of recalled facts by prompt length, the longest first, because models differ there."""
    found = (
        needle.group_by("length", "model")
        .agg(pl.col("accuracy").mean())
        .sort("length", "model", descending=[True, False])
    )
    amounts = [
        PageAmount(name=f"{length:,} {model}", value=share, reference=model == MODELS[0])
        for length, model, share in found.iter_rows()
    ]
    return PageChart(name="share found", amounts=amounts, share=True)


def needle_sentences(needle: pl.DataFrame) -> tuple[str, str]:
    """Return a sentence on each model's mean accuracy over the grid, and a sentence on the mean NLL of the answer.

    The NLL distinguishes models that recall no fact, or every fact.
    """
    columns = pl.col("accuracy").mean(), pl.col("answer_nll").mean()
    means = {name: rest for name, *rest in needle.group_by("model").agg(*columns).iter_rows()}
    shown = [name for name in MODELS if name in means]
    lengths = " to ".join(f"{length:,}" for length in dict.fromkeys([needle["length"].min(), needle["length"].max()]))
    found = ", ".join(f"{name} finds {percent(means[name][0])}" for name in shown)
    nll = ", ".join(f"{name} {means[name][1]:.2f}" for name in shown)
    return (
        f"Of the facts hidden in prompts of {lengths} tokens, {found}.",
        f"Mean NLL of the answer, in nats per token: {nll}; lower is better.",
    )


def needle_heatmaps(needle: pl.DataFrame) -> Figure:
    """Return heat maps of accuracy by prompt length and depth of the fact, for base and checkpoint."""
    from gateau_dagster.plotting import label, new_figure, say

    depths, lengths = (sorted(needle[name].unique().to_list()) for name in ("depth", "length"))
    figure, axes = new_figure(
        "A fact hidden in a long context: share found", columns=2, height=1.6 + 0.42 * max(3, len(depths))
    )
    for axis, model in zip(axes, MODELS, strict=True):
        rows = needle.filter(pl.col("model") == model)
        if rows.is_empty():
            say(axis, f"{model}: not measured")
            continue
        grid = np.full((len(depths), len(lengths)), np.nan)
        for length, depth, accuracy in rows.select("length", "depth", "accuracy").iter_rows():
            grid[depths.index(depth), lengths.index(length)] = accuracy
        _heatmap(axis, grid, lengths=lengths, depths=depths)
        label(axis, x="prompt (tokens)", y="depth of the fact (% of the context)", title=model)
    return figure


def _heatmap(axis: Axes, grid: np.ndarray, *, lengths: list[int], depths: list[float]) -> None:
    from gateau_dagster.plotting import ON_DARK, ON_LIGHT

    axis.imshow(np.ma.masked_invalid(grid), cmap="cividis", vmin=0, vmax=1, aspect="auto")
    axis.grid(False)
    axis.spines[:].set_visible(False)
    axis.set_xticks(range(len(lengths)), [f"{length:,}" for length in lengths])
    axis.set_yticks(range(len(depths)), [f"{100 * depth:.0f}" for depth in depths])
    for row, column in np.ndindex(grid.shape):
        if not np.isnan(grid[row, column]):
            ink = ON_DARK if grid[row, column] < 0.5 else ON_LIGHT
            text = f"{100 * grid[row, column]:.0f} %"
            axis.text(column, row, text, ha="center", va="center", fontsize=9, color=ink)


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
# The haystack reads only as many documents as the longest prompts need, for data of any size.
_DOCUMENTS = 256


class NeedleDoesNotFitError(ValueError):
    """Raised for a prompt length that is too short or too long."""


def score_answer(loaded: LoadedModel, prompt: Prompt) -> tuple[bool, float]:
    """Return whether every answer token is the most likely one, and their mean NLL in nats.

    Raises:
        ShortOfMemoryError: the prompt does not fit into memory.
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
        raise ShortOfMemoryError(out_of_memory_reason(prompt.length, advice))
    return scored


class Needle(MeasuredBenchmark):
    """Needle in a haystack of the project's documents, with teacher-forced answers."""

    name = "needle"
    title = "Needle in a haystack"
    description = (
        "A fact hidden at a depth of a haystack of a length, and asked for at its end: base against checkpoint."
    )
    default = True
    code_version = "2"
    options: NeedleOptions
    unit = "share found"
    groups = "length"
    columns = NEEDLE
    finite = ("accuracy", "answer_nll")

    def reads(self) -> dict[str, By]:
        return {"raw_long_sft": "fingerprint"}

    def settings(self) -> dict[str, Any]:
        return {"training.seed": self.config.training.seed}

    def check(self) -> None:
        """Check the lengths against scoring.max_length.

        Raises:
            GateauError: a configured length, or every default length, is above scoring.max_length.
        """
        longest, lengths = self.config.scoring.max_length, sorted(set(self.options.lengths))
        above = [length for length in lengths if length > longest]
        if above and (above == lengths or "lengths" in self.options.model_fields_set):
            raise GateauError(
                "evaluation.length",
                f"evaluation.needle.lengths: no prompt has {', '.join(map(str, above))} tokens, since "
                f"scoring.max_length is {longest}: give shorter lengths, or raise it",
            )

    def measure(self, materials: Materials, variant: str) -> Measured:
        """Return 1 for each recalled needle, and 0 for the others; the group is the prompt's length.

        The table also has `length`, `depth` and `nll`, the mean NLL of the answer in nats per token. The answer is
        teacher-forced: the model recalls a needle if each token of the answer is the most likely one. Lengths above
        scoring.max_length, too short for the question, or too long for the memory are skipped with a reason.

        Raises:
            GateauError: all lengths are skipped.
        """
        loaded, most = materials.model(variant), self.config.scoring.max_length
        lengths, depths = sorted(set(self.options.lengths)), sorted(set(self.options.depths))
        hay = build_haystack(loaded.tokenizer, _documents(materials), tokens=4 * min(lengths[-1], most))
        rows: list[tuple[str, str, float, int, float, float]] = []
        skipped: list[Reject] = []
        for place, length in enumerate(lengths):
            try:
                if length > most:
                    raise NeedleDoesNotFitError(
                        f"{length} tokens are more than the {most} the model is shown: raise scoring.max_length or "
                        "lower evaluation.needle.lengths"
                    )
                cells = {depth: self.prompts(loaded, hay, length=length, depth=depth) for depth in depths}
                for done, (depth, prompts) in enumerate(cells.items(), start=1):
                    scores = [score_answer(loaded, prompt) for prompt in prompts]
                    rows += (
                        (f"{length}-{depth:g}-{repeat}", str(length), float(found), length, depth, nll)
                        for repeat, (found, nll) in enumerate(scores)
                    )
                    note = f"{variant}, {length} tokens"
                    materials.progress(place + done / len(cells), len(lengths), "lengths", note)
            except (NeedleDoesNotFitError, ShortOfMemoryError) as error:
                no_memory = isinstance(error, ShortOfMemoryError)
                name = f"{variant}, length={length}"
                skipped.append(Reject(sample_id=name, reason=str(error), short_of_memory=no_memory))
        if not rows:
            raise GateauError("evaluation.length", f"evaluation/needle: no length can be measured: {skipped[0].reason}")
        further = {"length": pl.Int32(), "depth": pl.Float64(), "nll": pl.Float64()}
        table = pl.DataFrame(rows, schema={**tables.schema(tables.SCORES), **further}, orient="row")
        return Measured(table=table, rejected=skipped)

    def prompts(self, loaded: LoadedModel, hay: Haystack, *, length: int, depth: float) -> list[Prompt]:
        """Return the `repeats` prompts of a cell, each of exactly `length` tokens, with the fact at `depth` of the hay.

        Prompts depend on the seed and the cell, so two models with the same tokenizer get equal ones.

        Raises:
            NeedleDoesNotFitError: question, fact and answer have more than `length` tokens without any other text.
        """
        pairs = self.options.pairs or default_pairs()
        prompts = []
        for repeat in range(self.options.repeats):
            rng = random.Random(f"{self.config.training.seed}:{length}:{depth}:{repeat}")
            pair = rng.choice(pairs)
            bare = self._bare_prompt(loaded, key=pair.key, value=rng.choice(pair.values))
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

    def _bare_prompt(self, loaded: LoadedModel, *, key: str, value: str) -> Prompt:
        """Return the prompt with only the fact as context."""
        from gateau_dagster.models.prompt import build_prompt

        fact, question, answer = (
            text.replace("{key}", key).replace("{value}", value)
            for text in (self.options.fact, self.options.question, self.options.answer)
        )
        sample = Sample(sample_id="needle", source="needle", context=fact, instruction=question, response=answer)
        try:
            template = self.config.scoring.template
            return build_prompt(loaded.tokenizer, sample, max_length=sys.maxsize, template=template)
        except UnscorableSampleError as error:
            raise GateauError(
                "evaluation.length", f"evaluation.needle: with key {key!r} and value {value!r}, {error}"
            ) from error

    def compare(self, measured: Mapping[str, Measured]) -> Measured:
        """Return the table NEEDLE: accuracy and answer NLL of each cell."""
        rows = []
        for name, found in measured.items():
            for (length, depth), cell in found.table.group_by("length", "depth", maintain_order=True):
                accuracy, nll = (math.fsum(cell[column]) / cell.height for column in ("value", "nll"))
                rows.append((name, length, depth, cell.height, accuracy, nll))
        rejected = [reject for found in measured.values() for reject in found.rejected]
        return Measured(table=pl.DataFrame(rows, schema=tables.schema(NEEDLE), orient="row"), rejected=rejected)

    def section(self, table: pl.DataFrame) -> PageSection:
        figure = PageFigure(
            name="needle in a haystack",
            draw=partial(needle_heatmaps, table),
            alt="Share of facts found by length and depth",
            caption="How to read it: each cell hides facts at one depth of contexts of one length and asks for them at "
            "the end; yellow is found, dark blue is missed. A fact counts as found when every token of the answer is "
            "the most likely one, the answer's earlier tokens given. Dark columns at the right show where the model "
            "loses sight of its context.",
        )
        cells = PageTable(frame=table, columns=_COLUMNS, shares=("depth", "accuracy"), folded="All cells as a table")
        found = needle_sentences(table)
        return PageSection(
            sentences=found, figures=[figure], tables=[cells], headline=found[0], chart=needle_chart(table)
        )


def _documents(materials: Materials) -> list[str]:
    """Return the first documents; read shards only until there are enough."""
    texts: list[str] = []
    for shard in materials.shards("raw_long_sft", ["context"]):
        texts += shard["context"].to_list()
        if len(texts) >= _DOCUMENTS:
            break
    return texts[:_DOCUMENTS]
