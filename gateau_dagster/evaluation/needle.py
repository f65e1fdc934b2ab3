"""A needle in a haystack: a fact at a depth of a context, for any depth and length; the answer is teacher-forced."""

from __future__ import annotations

import math
import random
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import polars as pl
from pydantic import Field, model_validator

from gateau_dagster import tables
from gateau_dagster.config.base import Section
from gateau_dagster.config.values import LONGEST
from gateau_dagster.data.sample import Reject, Sample
from gateau_dagster.errors import GateauError, ShortOfMemoryError, UnscorableSampleError
from gateau_dagster.evaluation.benchmark import MODELS, Materials, Measured, MeasuredBenchmark
from gateau_dagster.evaluation.haystack import Haystack, build_haystack, insert_needle
from gateau_dagster.evaluation.page import PageAmount, PageChart, PageFigure, PageSection, PageTable
from gateau_dagster.progress import Progress, silent
from gateau_dagster.readable import percent, plural
from gateau_dagster.storage.stamp import By
from gateau_dagster.tables import Column

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from gateau_dagster.config.models import Template
    from gateau_dagster.models.loading import LoadedModel
    from gateau_dagster.models.prompt import Prompt


# The facts, their depths, and the questions.


_CITIES = ("Lisbon", "Nairobi", "Toronto", "Osaka", "Cusco", "Tallinn", "Hanoi", "Perth", "Bergen", "Tunis")


class NeedlePair(Section):
    """A key that is asked for, and its possible values."""

    key: str = Field(description="What the question asks for.")
    values: list[str] = Field(min_length=2, description="What the answer may be.")


class NeedleOptions(Section):
    """A fact hidden at a depth of a haystack of some length, and asked for at its end."""

    lengths: list[Annotated[int, Field(ge=1, le=LONGEST)]] = Field(
        default=[1024, 2048, 4096, 8192], min_length=1, description="Prompt lengths in tokens."
    )
    depths: list[float] = Field(
        default=[0.0, 0.25, 0.5, 0.75, 1.0], min_length=1, description="Places of the needle: 0 is the prompt's start."
    )
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


def needle_section(needle: pl.DataFrame) -> PageSection:
    """Return the report's section. `needle`: the table `evaluation/needle`."""
    figure = PageFigure(
        name="needle in a haystack",
        draw=partial(needle_heatmaps, needle),
        alt="Share of facts found by length and depth",
        caption="How to read it: each cell hides facts at one depth of contexts of one length and asks for them at the "
        "end; yellow is found, dark blue is missed. A fact counts as found when every token of the answer is the most "
        "likely one, the answer's earlier tokens given. Dark columns at the right show where the model loses sight of "
        "its context.",
    )
    table = PageTable(frame=needle, columns=_COLUMNS, shares=("depth", "accuracy"), folded="All cells as a table")
    return PageSection(
        sentences=[needle_sentence(needle)], figures=[figure], tables=[table], chart=needle_chart(needle)
    )


def needle_chart(needle: pl.DataFrame) -> PageChart:
    """Return each model's share of found facts by prompt length, the longest first, because models differ there."""
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


def needle_sentence(needle: pl.DataFrame) -> str:
    """Describe each model's mean accuracy over the grid and mean NLL of the answer.

    The NLL distinguishes models that find nothing, or everything.
    """
    columns = pl.col("accuracy").mean(), pl.col("answer_nll").mean()
    means = {name: rest for name, *rest in needle.group_by("model").agg(*columns).iter_rows()}
    shown = [name for name in MODELS if name in means]
    cells = needle.select("length", "depth").n_unique()
    found = ", ".join(f"{name} {percent(means[name][0])}" for name in shown)
    nll = ", ".join(f"{name} {means[name][1]:.2f}" for name in shown)
    return (
        f"Share of the hidden facts found, mean over {plural(cells, 'cell')} of the grid: {found}. "
        f"Mean NLL of the answer, in nats per token: {nll}; lower is better."
    )


def needle_heatmaps(needle: pl.DataFrame) -> Figure:
    """Draw accuracy by prompt length and depth of the fact, base beside checkpoint."""
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
# Documents of the haystack: enough text for the longest prompts, whatever the data's size.
_DOCUMENTS = 256


@dataclass(frozen=True, kw_only=True)
class NeedleCell:
    """The needles of one length and depth: for each, whether it was found and the mean NLL of its answer in nats."""

    length: int
    depth: float
    scores: Sequence[tuple[bool, float]]


def needle_cells(
    loaded: LoadedModel,
    name: str,
    haystack_texts: Iterable[str],
    options: NeedleOptions,
    *,
    max_length: int,
    template: Template,
    seed: int,
    progress: Progress = silent,
) -> tuple[list[NeedleCell], list[Reject]]:
    """Measure every cell of depth x length for the model called `name`; return the cells and the skipped lengths.

    A prompt of length L has L tokens, answer included. The answer is teacher-forced: a needle is found when each of its
    tokens is the most likely one. Needles depend on `seed` and cell, not on the model, so two models with the same
    tokenizer get the same prompts. Lengths above `max_length`, or too short for the question, are skipped with a
    reason.

    Raises GateauError when all lengths are skipped.
    """
    lengths = sorted(set(options.lengths))
    hay = build_haystack(loaded.tokenizer, haystack_texts, tokens=4 * min(max(lengths), max_length))
    found: list[NeedleCell] = []
    skipped: list[Reject] = []
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
            found.extend(_score_cells(loaded, length, cells, say))
        except (NeedleDoesNotFitError, ShortOfMemoryError) as error:
            no_memory = isinstance(error, ShortOfMemoryError)
            reject = Reject(sample_id=f"{name}, length={length}", reason=str(error), short_of_memory=no_memory)
            skipped.append(reject)
    if not found:
        raise GateauError("evaluation.length", f"evaluation/needle: no length can be measured: {skipped[0].reason}")
    return found, skipped


def _report(progress: Progress, place: int, lengths: int, note: str, share: float) -> None:
    progress(place + share, lengths, "lengths", note)


def _score_cells(
    loaded: LoadedModel, length: int, cells: Mapping[float, Sequence[Prompt]], say: Callable[[float], None]
) -> Iterator[NeedleCell]:
    for done, (depth, prompts) in enumerate(cells.items(), start=1):
        yield NeedleCell(length=length, depth=depth, scores=[score_answer(loaded, prompt) for prompt in prompts])
        say(done / len(cells))


def needle_values(cells: Iterable[NeedleCell]) -> pl.DataFrame:
    """Return tables.SCORES: 1 for a needle that was found, else 0; the group is the prompt's length.

    It also has `length`, `depth` and `nll`, the mean NLL of the answer in nats per token.
    """
    rows = [
        (f"{cell.length}-{cell.depth:g}-{repeat}", str(cell.length), float(found), cell.length, cell.depth, nll)
        for cell in cells
        for repeat, (found, nll) in enumerate(cell.scores)
    ]
    further = {"length": pl.Int32(), "depth": pl.Float64(), "nll": pl.Float64()}
    return pl.DataFrame(rows, schema={**tables.schema(tables.SCORES), **further}, orient="row")


def grid_table(name: str, needles: pl.DataFrame) -> pl.DataFrame:
    """Return NEEDLE: accuracy and answer NLL of every cell, from `needle_values` of the model called `name`."""
    rows = []
    for (length, depth), cell in needles.group_by("length", "depth", maintain_order=True):
        accuracy, nll = (math.fsum(cell[column]) / cell.height for column in ("value", "nll"))
        rows.append((name, length, depth, cell.height, accuracy, nll))
    return pl.DataFrame(rows, schema=tables.schema(NEEDLE), orient="row")


class NeedleDoesNotFitError(ValueError):
    """A prompt length that is too short or too long."""


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
    """Return the `repeats` prompts of a cell, each of exactly `length` tokens, with the fact at `depth` of the hay.

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
    """Return the prompt whose whole context is the fact."""
    from gateau_dagster.models.prompt import build_prompt

    fact, question, answer = (
        text.replace("{key}", key).replace("{value}", value)
        for text in (options.fact, options.question, options.answer)
    )
    sample = Sample(sample_id="needle", source="needle", context=fact, instruction=question, response=answer)
    try:
        return build_prompt(loaded.tokenizer, sample, max_length=sys.maxsize, template=template)
    except UnscorableSampleError as error:
        raise GateauError(
            "evaluation.length", f"evaluation.needle: with key {key!r} and value {value!r}, {error}"
        ) from error


def score_answer(loaded: LoadedModel, prompt: Prompt) -> tuple[bool, float]:
    """Return whether every answer token is the most likely one, and their mean NLL in nats.

    Raises ShortOfMemoryError when the prompt does not fit into memory.
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
    """A needle in a haystack of the project's own documents, teacher-forced."""

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
        """Raise GateauError for given lengths above scoring.max_length, or if all of the default ones are above it."""
        longest, lengths = self.config.scoring.max_length, sorted(set(self.options.lengths))
        above = [length for length in lengths if length > longest]
        if above and (above == lengths or "lengths" in self.options.model_fields_set):
            raise GateauError(
                "evaluation.length",
                f"evaluation.needle.lengths: no prompt has {', '.join(map(str, above))} tokens, since "
                f"scoring.max_length is {longest}: give shorter lengths, or raise it",
            )

    def measure(self, materials: Materials, variant: str) -> Measured:
        cells, skipped = needle_cells(
            materials.model(variant),
            variant,
            _documents(materials),
            self.options,
            max_length=self.config.scoring.max_length,
            template=self.config.scoring.template,
            seed=self.config.training.seed,
            progress=materials.progress,
        )
        return Measured(table=needle_values(cells), rejected=skipped)

    def compare(self, measured: Mapping[str, Measured]) -> Measured:
        return Measured(
            table=pl.concat(grid_table(name, found.table) for name, found in measured.items()),
            rejected=[reject for found in measured.values() for reject in found.rejected],
        )

    def section(self, table: pl.DataFrame) -> PageSection:
        return needle_section(table)


def _documents(materials: Materials) -> list[str]:
    """Return the first documents; shards are read only until there are enough."""
    texts: list[str] = []
    for shard in materials.shards("raw_long_sft", ["context"]):
        texts += shard["context"].to_list()
        if len(texts) >= _DOCUMENTS:
            break
    return texts[:_DOCUMENTS]
