"""LADM: score how much, how far back and how unevenly each span of a sample attends to the spans before it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import polars as pl
from pydantic import Field, model_validator

from gateau_dagster import tables
from gateau_dagster.data.sample import Reject
from gateau_dagster.errors import GateauError
from gateau_dagster.methods.method import PromptMethod, PromptOptions, Reads, SpanMap, Spans, Tables
from gateau_dagster.readable import percentage
from gateau_dagster.scoring.focus_scores import (
    FocusPlan,
    FocusSums,
    FocusWeights,
    Variant,
    added_by_span,
    contextual_dependency_score,
    sums_from_lists,
)
from gateau_dagster.scoring.sample_table import (
    Numbers,
    PlannedPasses,
    PlannedWork,
    Row,
    Running,
    SampleTable,
    SampleTokens,
)

if TYPE_CHECKING:
    from gateau_dagster.data.sample import Sample
    from gateau_dagster.models.flops import ModelShape
    from gateau_dagster.models.loaded import LoadedModel


class LadmOptions(PromptOptions):
    """LADM's parameters, with the paper's defaults (section 4.3). Switching a weight off needs no model run."""

    model: str = Field(default="long", description="Key of `models`: the paper's Long Attention Calculator.")
    variant: Variant = Field(default="paper", description="'program' computes what the authors' program does.")
    span_length: int = Field(default=128, ge=1, description="Tokens of a span (l in the paper).")
    first_spans: int = Field(default=1, ge=0, description="Spans at the start that no score looks at (m in the paper).")
    local_spans: int = Field(
        default=4,
        ge=0,
        description="Spans just before a span that no score looks at (n in the paper); for variant paper.",
    )
    earlier_stride: int = Field(default=4, ge=1, description="Stride of the spans looked at (d of Eq. 4).")
    later_stride: int = Field(default=4, ge=1, description="Stride of the spans that look (d of Eq. 5).")
    first_scored: int = Field(
        default=16,
        ge=1,
        description="n_0: the first span that looks, of variant paper. A sample of fewer than (first_scored + 1)·"
        "span_length tokens has no score: 2,176 with the defaults, 2,305 with variant program, whose spans look from "
        "first_spans + 4·earlier_stride on.",
    )
    deviation_weight: bool = Field(
        default=True, description="Whether σ_j of Eq. 4 weighs; false is the paper's 'w/o std'."
    )
    interval_weight: bool = Field(
        default=True, description="Whether j - i of Eq. 4 weighs; false, with the next key, is 'w/o length'."
    )
    position_weight: bool = Field(default=True, description="Whether j/N of Eq. 5 weighs.")

    @model_validator(mode="after")
    def _something_to_look_at(self) -> LadmOptions:
        if self.variant == "program":
            for name in ("local_spans", "first_scored"):
                if getattr(self, name) != type(self).model_fields[name].default:
                    raise GateauError(
                        "methods.options",
                        f"{name}: the authors' program does not have this option: remove it, or set variant: paper",
                    )
            return self
        if self.first_scored <= self.first_spans + self.local_spans:
            raise GateauError(
                "methods.options",
                f"first_scored ({self.first_scored}) must be above first_spans + local_spans "
                f"({self.first_spans + self.local_spans}): an earlier span has none to attend to",
            )
        return self

    @property
    def plan(self) -> FocusPlan:
        """Return the plan of what is measured."""
        return FocusPlan(**self.model_dump(include=set(FocusPlan.__dataclass_fields__)))

    @property
    def needed(self) -> str:
        """Return the length that a sample needs for a score, as text."""
        if self.variant == "program":
            return f"more than {self.plan.lowest_scored + 1} spans of {self.span_length}"
        return f"{self.first_scored + 1} spans of {self.span_length}"

    @property
    def lowered(self) -> str:
        """Return the keys that let shorter samples be scored if lowered, as text."""
        return "span_length or earlier_stride" if self.variant == "program" else "span_length or first_scored"

    @property
    def weights(self) -> FocusWeights:
        """Return which weights count."""
        return FocusWeights(
            deviation=self.deviation_weight, interval=self.interval_weight, position=self.position_weight
        )


# The table holds sums and not scores: the weights of the options change without a model. The PFS of all pairs of spans
# would allow more, and take thousands of numbers per layer and sample.
_SUMS = ("deviation", "focus", "distant_focus")
_CHARACTERS = 4  # characters per token, approximately
_NOTABLE = 0.05  # share of samples without a score that is worth a warning
_TABLE_VERSIONS = {"paper": "2", "program": "3"}
_LAYERS = "layer after layer, in each for every scored span"
COLUMNS = (
    tables.SAMPLE_ID,
    tables.DIGEST,
    tables.Column(name="tokens", dtype=pl.Int32(), description="Tokens of the prompt with its response."),
    tables.Column(name="spans", dtype=pl.Int32(), description="N, whole spans; they end where the prompt ends."),
    tables.Column(
        name="scored_spans", dtype=pl.List(pl.Int32()), description="The j of Eq. 5; none in a short sample."
    ),
    tables.Column(name="deviation", dtype=pl.List(pl.Float64()), description=f"σ_j of Eq. 3, {_LAYERS}."),
    tables.Column(name="focus", dtype=pl.List(pl.Float64()), description=f"Sum of PFS(i, j) over i, {_LAYERS}."),
    tables.Column(
        name="distant_focus", dtype=pl.List(pl.Float64()), description=f"Sum of PFS(i, j)·(j - i) over i, {_LAYERS}."
    ),
)


class Ladm(PromptMethod):
    """Score by CDS (Eq. 5)."""

    name = "ladm"
    code_version = "2"
    title = "Spans of the sample attend strongly, unevenly and far back to the text before them."
    source = "LADM (Chen et al. 2025), Eqs. 2-5"
    per_sample = True
    options: LadmOptions

    @property
    def _table(self) -> str:
        return f"span_attention/{self.options.model}"

    def tables(self) -> Sequence[SampleTable]:
        plan = self.options.plan
        unread = {"local_spans", "first_scored"} if plan.variant == "program" else set[str]()
        return [
            SampleTable(
                asset=self._table,
                model=self.options.model,
                columns=COLUMNS,
                description="Attention between spans of each sample (LADM, Eqs. 2-4), in the sums that its scores "
                "need.",
                settings={name: getattr(plan, name) for name in FocusPlan.__dataclass_fields__ if name not in unread},
                code_version=_TABLE_VERSIONS[plan.variant],
                prompt="plain",
                needs_attention=True,
                score=self._rows,
                effort=partial(spans_effort, plan=plan),
            )
        ]

    def _rows(self, loaded: LoadedModel, samples: Iterable[Sample], running: Running) -> Iterator[Row | Reject]:
        from gateau_dagster.scoring.span_attention import measure_documents, sample_documents

        length, template = running.max_length, running.scoring.template
        documents = sample_documents(loaded.tokenizer, samples, max_length=length, template=template)
        for outcome in measure_documents(loaded, documents, plan=self.options.plan, work=running.work):
            if isinstance(outcome, Reject):
                yield outcome
                continue
            yield {
                "sample_id": outcome.name,
                "digest": outcome.digest,
                "tokens": outcome.tokens,
                "spans": outcome.spans,
                "scored_spans": list(outcome.sums.later),
                **{name: getattr(outcome.sums, name).ravel().tolist() for name in _SUMS},
            }

    def reads(self) -> Reads:
        return {self._table: ["sample_id", "tokens", "scored_spans", *_SUMS]}

    def score(self, tables: Tables) -> pl.DataFrame:
        frame, plan, weights = tables[self._table], self.options.plan, self.options.weights
        scores = [
            contextual_dependency_score(_sums_of(row), plan, row["tokens"], weights)
            for row in frame.iter_rows(named=True)
        ]
        return frame.select("sample_id", score=pl.Series(scores, dtype=pl.Float64))

    def span_map(self) -> SpanMap:
        plan, weights = self.options.plan, self.options.weights

        def spans(row: Row) -> Spans | None:
            if not row["scored_spans"]:
                return None
            tokens = row["tokens"]
            added = added_by_span(_sums_of(row), plan, tokens, weights).tolist()
            return Spans(of="prompt", tokens=tokens, first=plan.offset(tokens), length=plan.span_length, added=added)

        adds = "CDS: how strongly, unevenly and far back it attends"
        return SpanMap(table=self._table, model=self.options.model, adds=adds, spans=spans)

    def needed(self) -> tuple[int, str, str]:
        fewest = self.options.plan.fewest_tokens
        return fewest, f"{fewest} tokens are needed ({self.options.needed})", self.options.lowered

    def warnings(self, accepted: pl.DataFrame) -> list[str]:
        """Warn if a notable share of the samples is too short for a scored span, by a usual number of characters per
        token.
        """
        fewest = self.options.plan.fewest_tokens
        short = float((accepted["characters"] < fewest * _CHARACTERS).mean() or 0)  # pyright: ignore
        if short < _NOTABLE:
            return []
        return [
            f"ladm gives no score to a sample of fewer than {fewest:,} tokens ({self.options.needed}), which about "
            f"{percentage(round(short, 2))} of the samples are, by their characters: it cannot choose them. For these "
            f"lower {self.options.lowered} in {self.place}."
        ]


def _sums_of(row: Row) -> FocusSums:
    return sums_from_lists(row["scored_spans"], *(row[name] for name in _SUMS))


def spans_effort(tokens: SampleTokens, *, plan: FocusPlan) -> PlannedWork:
    """Return a pass over each prompt that has a scored span, and the rows of its scored spans."""
    length = tokens.prompts(opening=False).prompt
    count = (length >= plan.fewest_tokens).astype(float)
    whole = PlannedPasses(count=count, length=length)
    return PlannedWork(passes=[whole], rows=partial(_span_rows, length=length, plan=plan))


def _span_rows(shape: ModelShape, *, length: Numbers, plan: FocusPlan) -> Numbers:
    """Return the FLOPs of the attention of the scored spans of prompts of `length` tokens, float64 [samples].

    It loops over the scored spans, for all samples at once, and counts as scoring.span_attention does.
    """
    total, spans, offset = np.zeros_like(length), length // plan.span_length, length % plan.span_length
    program, lowest = plan.variant == "program", plan.lowest_scored
    # A loop over spans rather than samples: there are hundreds of spans at most, and up to millions of samples.
    for number in range(0, int(max(spans.max(initial=0) - lowest, 0)), plan.later_stride):
        j = spans - 1 - number if program else np.full_like(spans, lowest + number)
        scored = (j >= lowest + (offset == 0) if program else j >= lowest) & (j < spans)
        keys = scored * (offset + (j + 1) * plan.span_length)
        total += plan.span_length * shape.attention_row_flops_each(keys)
    return total
