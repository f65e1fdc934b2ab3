"""Describe a table that a model computes: a row per sample, saved row by row, and its work, known before it runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import polars as pl

from gateau_dagster import tables
from gateau_dagster.data.sample import Reject, Sample
from gateau_dagster.models.flops import ModelShape

if TYPE_CHECKING:
    from gateau_dagster.config import ScoringConfig
    from gateau_dagster.models.loaded import ForwardWork, LoadedModel
    from gateau_dagster.storage.stamp import Stamp


Row: TypeAlias = Mapping[str, Any]
Outcomes: TypeAlias = Mapping[str, Row | Reject]


@dataclass(frozen=True, kw_only=True)
class Running:
    """The context that a table's function receives besides the samples.

    max_length: tokens of a prompt, see models.loading.effective_max_length. work: grows as passes are done.
    visible_tokens: for a table with `needs_visible_window`, tokens of a prompt's end that theta_A is shown; None: all.
    """

    max_length: int
    scoring: ScoringConfig
    work: ForwardWork
    visible_tokens: int | None = None


@dataclass(frozen=True, kw_only=True)
class RequestedRow:
    """A sample, and the assets whose tables lack its row."""

    sample: Sample
    assets: frozenset[str]


ScoreRows: TypeAlias = "Callable[[LoadedModel, Iterable[Sample], Running], Iterator[Row | Reject]]"
ScoreTables: TypeAlias = "Callable[[LoadedModel, Iterable[RequestedRow], Mapping[str, Running]], Iterator[Outcomes]]"
Effort: TypeAlias = "Callable[[SampleTokens], PlannedWork]"
ShownPrompt: TypeAlias = Literal["opened", "plain", "none"]
# Cherry Selection embeds no more of a prompt, the program's --max_length: a longer one is cut at the end.
PROMPT_TOKENS = 512


@dataclass(frozen=True, kw_only=True)
class SharedPass:
    """The joint computation of several tables of one model, when one pass over a sample serves them all.

    name: of the step that makes these tables, or the requested ones of them. score: yields, for each sample in order, a
    row or a reject by asset, for each requested asset; it receives the context by asset.
    """

    name: str
    score: ScoreTables


@dataclass(frozen=True, kw_only=True)
class Derivation:
    """Derives the rows under the settings of now from rows that were computed under others, without a model.

    settings: names of the settings that may differ. marker: a column that is null where a row lacks what this takes.
    rows: returns these rows under the settings of now, equal to computed ones to the bit.
    """

    settings: frozenset[str]
    marker: str
    rows: Callable[[pl.DataFrame], pl.DataFrame]

    def fits(self, stamp: Stamp, wanted: Stamp) -> bool:
        """Return whether a table has another scorer than `wanted`, and differs from it only in `settings` and data."""
        left_out = {"raw_long_sft", *self.settings}  # samples are compared one by one

        def others(made: Stamp) -> list[Any]:
            parts = (made.inputs.get(name, {}) for name in ("settings", "upstream"))
            kept = [{name: value for name, value in part.items() if name not in left_out} for part in parts]
            return [made.inputs.get("code"), *kept]

        return stamp.scorer != wanted.scorer and others(stamp) == others(wanted)

    def possible(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Return the rows from which others can be derived; none of a table of an earlier release."""
        return rows.filter(pl.col(self.marker).is_not_null()) if self.marker in rows.columns else rows.clear()


@dataclass(frozen=True, kw_only=True)
class SampleTable:
    """A table that one of the configured models computes.

    asset: its name, such as `span_attention/long`. of: what the part after the slash names; empty without one.
    model: key of `models` in the configuration.
    summary: its content, for a list of tables. description: a sentence or two, for its page.
    columns: `sample_id` and `digest` first. finite: the columns that hold only finite numbers.
    settings: the settings that change a row, besides those of the model itself.
    score: yields one row, with every column, or one reject for each sample, in order. Its code's version is part of
        the fingerprint.
    shared: for tables that one step makes with one model; None: a separate step.
    effort: the work of `score` for some samples, as it charges `Running.work`, for `gateau plan`; without it the plan
        reports that the table is not estimated. other_efforts: by another setting, which the plan shows beside it.
    needs_visible_window: whether a row depends on how much of the prompt theta_A sees, as in `cam`.
    derivation: None where every setting takes a model.
    needs_attention: whether the model must show its attention weights.
    prompt: what a row reads of the scoring prompt (models.prompt): 'opened' with the model's preamble and
        demonstrations before it, 'plain' without them, 'none' if not even `scoring.template`. A change of what a row
        does not read does not recompute it.
    """

    asset: str
    model: str
    columns: tuple[tables.Column, ...]
    description: str
    score: ScoreRows
    of: str = "model"
    summary: str = "what a method's model computes"
    finite: tuple[str, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)
    code_version: str = "1"
    shared: SharedPass | None = None
    needs_visible_window: bool = False
    prompt: ShownPrompt = "opened"
    effort: Effort | None = None
    other_efforts: Mapping[str, Effort] = field(default_factory=dict)
    needs_attention: bool = False
    derivation: Derivation | None = None

    def __post_init__(self) -> None:
        assert self.columns[:2] == (tables.SAMPLE_ID, tables.DIGEST), "columns: begin with sample_id and digest"


Numbers = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class PromptParts:
    """Token counts of scoring prompts, float64 [samples]: `tail` is all but the context and includes `response`.

    All are 0 for a prompt whose tail is too long by itself. A context that is too long is cut at the start.
    """

    context: Numbers
    tail: Numbers
    response: Numbers

    @property
    def prompt(self) -> Numbers:
        """Return the tokens of the whole prompt."""
        return self.context + self.tail


@dataclass(frozen=True, kw_only=True)
class SampleTokens:
    """Token counts of some samples under one model: float64 [samples], or one number for all.

    context, instruction, response: of the texts, without truncation.
    frame: of the scoring prompt around the texts; opening: the part of the frame that is ModelConfig.opening.
    alone: of the prompt around a response without context and instruction. bos: 1 if the tokenizer has one.
    task: of the prompt that Cherry Selection embeds, around instruction and context, without bos.
    special: added for a model that reads instruction and response as a whole.
    limit: the most tokens that the model is shown.
    shared: bool [samples] or one for all, whether another table of the same step takes the pass over the whole prompt.
    shows_attention: whether the model's attention weights can be read. shape: the model's, if it is known.
    """

    context: Numbers
    instruction: Numbers
    response: Numbers
    frame: int
    opening: int
    alone: int
    bos: int
    special: int
    limit: int
    shared: npt.NDArray[np.bool_] | bool = False
    task: int = 45
    shows_attention: bool = True
    shape: ModelShape | None = None

    def prompts(self, *, opening: bool) -> PromptParts:
        """Return the scoring prompts, with or without the configured opening."""
        around = self.frame if opening else self.frame - self.opening
        tail = self.instruction + self.response + around
        # As `build_prompt` does: the context gives way, and a prompt whose other parts are too long is rejected. A
        # rejected sample takes no pass, so its numbers are 0.
        fits = (tail <= self.limit) & (self.response > 0)
        return PromptParts(
            context=np.where(fits, np.minimum(self.context, self.limit - tail), 0.0),
            tail=np.where(fits, tail, 0.0),
            response=np.where(fits, self.response, 0.0),
        )


@dataclass(frozen=True, kw_only=True)
class PlannedPasses:
    """Passes of one kind: `count` per sample, over `length` tokens each; float64 [samples].

    read: tokens of a document's end that are predicted; the last layer computes only the rows that predict them. None:
    all its rows. head: whether the output layer runs for `read`. predicted: tokens that it runs for if all rows are
    computed.
    """

    count: Numbers
    length: Numbers
    read: Numbers | None = None
    head: bool = False
    predicted: Numbers | None = None

    def flops(self, shape: ModelShape) -> Numbers:
        """Return the FLOPs of these passes [samples]."""
        each = shape.pass_flops(self.length, self.read)
        rows = self.read if self.head else self.predicted
        if rows is not None:
            each = each + shape.head_flops(1.0) * rows
        return self.count * each


@dataclass(frozen=True, kw_only=True)
class PlannedWork:
    """The total work of a table for some samples. `reads_context`: whether their contexts must be tokenised.

    rows: returns the FLOPs [samples], for a model's shape, of attention weights that are recomputed for reading.
    """

    passes: Sequence[PlannedPasses]
    rows: Callable[[ModelShape], Numbers] | None = None
    reads_context: bool = True

    @property
    def tokens(self) -> Numbers:
        """Return the tokens through the model [samples]."""
        return np.sum([one.count * one.length for one in self.passes], axis=0)

    def flops(self, shape: ModelShape) -> Numbers:
        """Return the FLOPs [samples] of a decoder that narrows its last layer to the rows read, as most do."""
        rows = [] if self.rows is None else [self.rows(shape)]
        return np.sum([*(one.flops(shape) for one in self.passes), *rows], axis=0)


def packed_documents(length: Numbers, *, read: Numbers | None) -> PlannedPasses:
    """Return one short document per sample, none if its length is 0; `read`: see PlannedPasses, None for no output
    layer.
    """
    return PlannedPasses(count=(length > 0).astype(np.float64), length=length, read=read, head=read is not None)
