"""Describe a table that a model computes: one row per sample, by shard, saved row by row."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from gateau_dagster import tables
from gateau_dagster.data.sample import Reject, Sample

if TYPE_CHECKING:
    from gateau_dagster.config import ScoringConfig
    from gateau_dagster.models.flops import ForwardWork
    from gateau_dagster.models.loading import LoadedModel
    from gateau_dagster.scoring.planned_work import PlannedWork, SampleTokens

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


@dataclass(frozen=True, kw_only=True)
class SharedPass:
    """The joint computation of several tables of one model, when one pass over a sample serves them all.

    name: of the step that makes these tables, or the requested ones of them. score: yields, for each sample in order, a
    row or a reject by asset, for each requested asset; it receives the context by asset.
    """

    name: str
    score: ScoreTables


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
    shared: for tables that one step makes with one model; None: a step of its own.
    effort: the work of `score` for some samples, as it charges `Running.work`, for `gateau plan`; without it the plan
        reports that the table is not estimated. other_efforts: by another setting, which the plan shows beside it.
    needs_visible_window: whether a row depends on how much of the prompt theta_A sees, as in `cam`.
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

    def __post_init__(self) -> None:
        assert self.columns[:2] == (tables.SAMPLE_ID, tables.DIGEST)
