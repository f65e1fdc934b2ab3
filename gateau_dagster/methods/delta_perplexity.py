"""Delta perplexity: score how many of a sample's segments become likelier after an earlier segment, and after which.

The method follows Chen et al. 2024, with their strength, distance and specificity. Variant `paper` turns the sum over
pairs into a score by our interpretation of the paper. The weights are shares of alpha + beta, and the sum is divided by
the number of evaluated pairs. Variant `program` is the plain sum of their program. The arithmetic is in
scoring.dependency_scores.
"""

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
from gateau_dagster.scoring.dependency_scores import (
    DependencyRule,
    SegmentPairs,
    Variant,
    added_by_segment,
    long_dependency_score,
)
from gateau_dagster.scoring.sample_table import PlannedPasses, PlannedWork, Row, Running, SampleTable, SampleTokens

if TYPE_CHECKING:
    from gateau_dagster.data.sample import Sample
    from gateau_dagster.models.loaded import LoadedModel


class DeltaPerplexityOptions(PromptOptions):
    """The method's parameters with the paper's defaults. Only the first three change what a model computes.

    The paper leaves the normalisation open: variant `paper` is our interpretation.
    """

    model: str = Field(default="long", description="Key of `models`; segments are short, so a small model will do.")
    segment_length: int = Field(default=128, ge=2, description="Tokens of a segment.")
    pairs: int = Field(default=5000, ge=1, description="Most pairs of segments of a sample; below it all are run.")
    variant: Variant = Field(
        default="paper",
        description="'program' is the plain sum of the authors' program; 'paper' divides by the evaluated pairs and by "
        "alpha + beta, which is this project's reading of the paper.",
    )
    threshold: float = Field(default=0.1, description="A pair counts when its dependency strength is above it.")
    alpha: float = Field(default=1.0, ge=0, description="Weight of the strength; the program has none.")
    beta: float = Field(default=1.0, ge=0, description="Weight of the distance; the program has none.")
    window: int | None = Field(
        default=32_768, ge=1, description="Tokens over which distance is counted; null: the sample's own."
    )

    @model_validator(mode="after")
    def _possible(self) -> DeltaPerplexityOptions:
        if self.alpha + self.beta == 0:
            raise GateauError(
                "methods.options", "alpha and beta are both 0, so every score would be 0: raise one of them"
            )
        if self.window is not None and self.window < 2 * self.segment_length:
            raise GateauError(
                "methods.options", f"window ({self.window}) must hold two segments of {self.segment_length} tokens"
            )
        return self

    @property
    def rule(self) -> DependencyRule:
        """Return the rule that turns pairs into a score."""
        return DependencyRule(
            variant=self.variant,
            threshold=self.threshold,
            alpha=self.alpha,
            beta=self.beta,
            window_segments=None if self.window is None else self.window // self.segment_length,
        )


_LISTS = ("segment_perplexity", "later_segment", "earlier_segment", "pair_perplexity")
COLUMNS = (
    tables.SAMPLE_ID,
    tables.DIGEST,
    tables.Column(name="tokens", dtype=pl.Int32(), description="Tokens of the prompt with its response, without bos."),
    tables.Column(
        name="segment_perplexity",
        dtype=pl.List(pl.Float64()),
        description="P(i) of each whole segment; none where there are fewer than two.",
    ),
    tables.Column(name="later_segment", dtype=pl.List(pl.Int32()), description="i of each evaluated pair, from 0."),
    tables.Column(name="earlier_segment", dtype=pl.List(pl.Int32()), description="j < i of each evaluated pair."),
    tables.Column(name="pair_perplexity", dtype=pl.List(pl.Float64()), description="P(i|j) of each evaluated pair."),
)


class DeltaPerplexity(PromptMethod):
    """Score by LDS."""

    name = "delta_perplexity"
    title = "Many segments of the sample are likelier behind one particular earlier segment, best of all a far one."
    source = "Chen et al. 2024 (Long Context is Not Long at All), dependency strength, distance and specificity"
    per_sample = True
    options: DeltaPerplexityOptions

    @property
    def _table(self) -> str:
        return f"segment_pairs/{self.options.model}"

    def tables(self) -> Sequence[SampleTable]:
        settings = {"segment_length": self.options.segment_length, "pairs": self.options.pairs}
        return [
            SampleTable(
                asset=self._table,
                model=self.options.model,
                columns=COLUMNS,
                code_version="2",
                description="Perplexity of each segment alone and behind earlier segments (Chen et al. 2024).",
                settings=settings,
                prompt="plain",
                score=self._rows,
                effort=partial(pairs_effort, **settings),
            )
        ]

    def _rows(self, loaded: LoadedModel, samples: Iterable[Sample], running: Running) -> Iterator[Row | Reject]:
        from gateau_dagster.scoring.segment_pairs import PairPlan, measure_segment_pairs

        measured = measure_segment_pairs(
            loaded,
            samples,
            plan=PairPlan(segment_length=self.options.segment_length, pairs=self.options.pairs),
            max_length=running.max_length,
            scoring=running.scoring,
            work=running.work,
        )
        for outcome in measured:
            if isinstance(outcome, Reject):
                yield outcome
                continue
            pairs = outcome.pairs
            lists = (pairs.alone, pairs.later, pairs.earlier, pairs.behind)
            yield {
                "sample_id": outcome.sample.sample_id,
                "digest": outcome.sample.digest,
                "tokens": outcome.tokens,
                **{name: values.tolist() for name, values in zip(_LISTS, lists, strict=True)},
            }

    def reads(self) -> Reads:
        return {self._table: ["sample_id", *_LISTS]}

    def score(self, tables: Tables) -> pl.DataFrame:
        frame, rule = tables[self._table], self.options.rule
        scores = [long_dependency_score(_pairs_of(row), rule) for row in frame.iter_rows(named=True)]
        return frame.select("sample_id", score=pl.Series(scores, dtype=pl.Float64))

    def span_map(self) -> SpanMap:
        rule, length = self.options.rule, self.options.segment_length

        def spans(row: Row) -> Spans | None:
            pairs = _pairs_of(row)
            if not len(pairs.later):
                return None
            added = added_by_segment(pairs, rule).tolist()
            return Spans(of="prompt without bos", tokens=row["tokens"], first=0, length=length, added=added)

        adds = "LDS: how much likelier it becomes behind earlier segments"
        return SpanMap(table=self._table, model=self.options.model, adds=adds, spans=spans)

    def needed(self) -> tuple[int, str, str]:
        length = self.options.segment_length
        return 2 * length, f"two segments of {length} tokens are needed", "segment_length"


def _pairs_of(row: Row) -> SegmentPairs:
    alone, later, earlier, behind = (row[name] for name in _LISTS)
    return SegmentPairs(
        alone=np.array(alone, dtype=np.float64),
        later=np.array(later, dtype=np.int64),
        earlier=np.array(earlier, dtype=np.int64),
        behind=np.array(behind, dtype=np.float64),
    )


def pairs_effort(tokens: SampleTokens, *, segment_length: int, pairs: int) -> PlannedWork:
    """Return the passes over every whole segment and the chosen pairs; none for a sample with fewer than two
    segments.
    """
    segments = (tokens.prompts(opening=False).prompt - tokens.bos) // segment_length
    segments = np.where(segments < 2, 0.0, segments)
    one = np.full_like(segments, segment_length)
    counts = ((segments, one), (np.minimum(segments * (segments - 1) / 2, pairs), 2 * one))
    return PlannedWork(
        passes=[PlannedPasses(count=count, length=length, read=one - 1, head=True) for count, length in counts]
    )
