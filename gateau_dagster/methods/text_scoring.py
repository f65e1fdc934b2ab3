"""LADM over a corpus of plain texts: every text's score, or the reason why there is none, and the choice by domain."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import polars as pl

from gateau_dagster.config import ModelConfig, ScoringConfig
from gateau_dagster.data.sample import Reject
from gateau_dagster.data.sources import SourceFile
from gateau_dagster.data.text_corpus import CorpusText, ScoredText, TextFields, read_texts
from gateau_dagster.errors import UnscorableSampleError
from gateau_dagster.models.flops import Work
from gateau_dagster.models.loading import LoadedModel, effective_max_length, load_model
from gateau_dagster.scoring.focus_scores import FocusPlan, FocusWeights, contextual_dependency_score
from gateau_dagster.scoring.span_scorer import Document, Measured, measure_documents, text_ids
from gateau_dagster.selection.token_budget import affordable, by_percentage

_RANKED = pl.Schema({"sample_id": pl.String, "source": pl.String, "score": pl.Float64, "tokens": pl.Int64})


@dataclass(kw_only=True)
class TextScoring:
    """One walk over the files. `report` gets the bytes read and the texts done so far."""

    files: Sequence[SourceFile]
    fields: TextFields
    plan: FocusPlan
    weights: FocusWeights
    report: Callable[[int, int], None]
    rejects: list[Reject] = field(default_factory=list)
    _waiting: dict[str, tuple[CorpusText, int]] = field(default_factory=dict)  # with the whole text's tokens
    _read: int = 0

    def run(self, model: ModelConfig, scoring: ScoringConfig) -> list[ScoredText]:
        """All texts that could be read; texts with another fate are in `rejects` afterwards.

        A text longer than `scoring.max_length` tokens is scored by its begin. Raises GateauError when the model or a
        file cannot be used.
        """
        loaded = load_model(model, dtype=scoring.dtype, device=scoring.device, folder=Path())
        longest = effective_max_length(loaded, model, scoring)
        outcomes = measure_documents(loaded, self._documents(loaded, longest), plan=self.plan, work=Work())
        scored: list[ScoredText] = []
        for done, outcome in enumerate(outcomes, start=1):
            if isinstance(outcome, Reject):
                del self._waiting[outcome.sample_id]
                self.rejects.append(outcome)
            else:
                scored.append(self._scored(outcome))
            self.report(self._read, done)
        return scored

    def _documents(self, loaded: LoadedModel, longest: int) -> Iterator[Document]:
        for text in read_texts(self.files, self.fields, self._count):
            if isinstance(text, Reject):
                self.rejects.append(text)
                continue
            try:
                ids = text_ids(loaded.tokenizer, text.text)
            except UnscorableSampleError as error:
                self.rejects.append(Reject(sample_id=text.name, reason=str(error)))
                continue
            self._waiting[text.name] = (text, len(ids))
            yield Document(name=text.name, ids=ids[:longest])

    def _count(self, size: int) -> None:
        self._read += size

    def _scored(self, measured: Measured) -> ScoredText:
        text, tokens = self._waiting.pop(measured.name)
        return ScoredText(
            name=text.name,
            domain=text.domain,
            tokens=tokens,
            spans=measured.spans,
            score=contextual_dependency_score(measured.sums, self.plan, measured.spans, self.weights),
            file=text.file,
            record=text.record,
        )


def choose_by_domain(texts: Iterable[ScoredText], token_budget: int) -> set[str]:
    """Names of the texts chosen from every domain's best ones, as large a share of each domain as the budget allows.

    LADM's selection (section 4.3), by the steps of selection.token_budget.per_source_tokens: the share taken grows in
    all domains together, so that domains keep their proportions, until the next text's tokens would exceed
    `token_budget`. The proportions are those of the scored texts: the paper's data set holds long texts only, and what
    has no score is too short to be one of them. Equal shares go by score, equal scores by name. Empty when the first
    text alone exceeds the budget.
    """
    rows = [(text.name, text.domain, text.score, text.tokens) for text in texts if text.score is not None]
    frame = pl.DataFrame(rows, schema=_RANKED, orient="row").sort("score", "sample_id", descending=[True, False])
    ranked = frame.with_row_index("rank", offset=1)
    return {*affordable(by_percentage(ranked), token_budget)["sample_id"]}
