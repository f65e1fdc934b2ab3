"""A table that a model computes for a method: a row a sample, by shard, kept row by row like `perplexity` and `cam`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from gateau_dagster import tables

if TYPE_CHECKING:
    from gateau_dagster.config import ScoringConfig
    from gateau_dagster.data.sample import Reject, Sample
    from gateau_dagster.models.flops import Work
    from gateau_dagster.models.loading import LoadedModel
    from gateau_dagster.scoring.planned_work import PlannedWork, SampleTokens

Row: TypeAlias = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Running:
    """What a table's function is told beside the samples.

    max_length: tokens of a prompt, see scoring.loading.effective_max_length. work: grows as passes are done.
    sight: of a table with `needs_visible_window`, tokens of a prompt's end that theta_A is shown; None: all.
    """

    max_length: int
    scoring: ScoringConfig
    work: Work
    sight: int | None = None


ScoreRows: TypeAlias = "Callable[[LoadedModel, Iterable[Sample], Running], Iterator[Row | Reject]]"
Effort: TypeAlias = "Callable[[SampleTokens], PlannedWork]"
ShownPrompt: TypeAlias = Literal["opened", "plain", "none"]


@dataclass(frozen=True, kw_only=True)
class SampleTable:
    """A table that one of the configured models computes.

    asset: its name, such as `span_attention/long`. model: key of `models` in the configuration.
    columns: `sample_id` and `digest` first. settings: what changes a row, beside the settings of the model itself.
    score: yields one row, with every column, or one reject for each sample, in order. Its code's version counts into
        the fingerprint.
    effort: what `score` takes of some samples, as it charges `Running.work`, for `gateau plan`; without it the plan
        says that the table is not estimated.
    needs_visible_window: whether a row depends on how much of the prompt theta_A sees, as those of `cam` do.
    prompt: what of the scoring prompt (scoring.prompt) a row reads: 'opened' with the model's preamble and
        demonstrations before it, 'plain' without them, 'none' of `scoring.template` either. What a row does not read
        does not make it again.
    """

    asset: str
    model: str
    columns: tuple[tables.Column, ...]
    description: str
    score: ScoreRows
    settings: Mapping[str, Any] = field(default_factory=dict)
    code_version: str = "1"
    needs_visible_window: bool = False
    prompt: ShownPrompt = "opened"
    effort: Effort | None = None

    def __post_init__(self) -> None:
        assert self.columns[:2] == (tables.SAMPLE_ID, tables.DIGEST)
