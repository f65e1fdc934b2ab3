"""Score a corpus of plain texts by LADM or information gain: one score or reject per text, in the files' order."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from gateau_dagster.config import ModelConfig, ScoringConfig
from gateau_dagster.data.sample import Reject
from gateau_dagster.data.sources import SourceFile
from gateau_dagster.data.text_corpus import CorpusText, ScoredText, TextFields, read_texts
from gateau_dagster.errors import UnscorableSampleError
from gateau_dagster.models.flops import ForwardWork
from gateau_dagster.models.loading import LoadedModel, effective_max_length, load_model
from gateau_dagster.scoring.focus_scores import FocusPlan, FocusWeights, contextual_dependency_score
from gateau_dagster.scoring.response_perplexity import information_gain, short_context_nlls, token_nlls
from gateau_dagster.scoring.sample_stream import rejected
from gateau_dagster.scoring.span_attention import Document, measure_documents, text_ids

TextScore: TypeAlias = tuple[str, int | None, float | None]
"""A text's name, its number of spans (None by information gain), and its score (None if it is too short for one)."""


@dataclass(kw_only=True)
class TextScoring(ABC):
    """One pass over the files. `report` receives the bytes read and the texts done so far."""

    files: Sequence[SourceFile]
    fields: TextFields
    report: Callable[[int, int], None]
    rejects: list[Reject] = field(default_factory=list)
    _waiting: dict[str, tuple[CorpusText, int]] = field(default_factory=dict)  # with the token count of the whole text
    _read: int = 0

    def run(self, model: ModelConfig, scoring: ScoringConfig) -> list[ScoredText]:
        """Return all texts that could be scored, and add the others to `rejects`.

        A text longer than `scoring.max_length` tokens is scored by its beginning. Raises GateauError if the model or a
        file cannot be used.
        """
        loaded = load_model(model, dtype=scoring.dtype, device=scoring.device, folder=Path())
        longest = effective_max_length(loaded, model, scoring)
        scored: list[ScoredText] = []
        for done, outcome in enumerate(self.scores(loaded, self._documents(loaded, longest)), start=1):
            if isinstance(outcome, Reject):
                del self._waiting[outcome.sample_id]
                self.rejects.append(outcome)
            else:
                scored.append(self._scored(*outcome))
            self.report(self._read, done)
        return scored

    @abstractmethod
    def scores(self, loaded: LoadedModel, documents: Iterator[Document]) -> Iterator[TextScore | Reject]:
        """Yield one outcome per document, in order."""

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

    def _scored(self, name: str, spans: int | None, score: float | None) -> ScoredText:
        text, tokens = self._waiting.pop(name)
        return ScoredText(
            name=text.name,
            domain=text.domain,
            tokens=tokens,
            spans=spans,
            score=score,
            file=text.file,
            record=text.record,
            digest=text.digest,
        )


@dataclass(kw_only=True)
class LadmTexts(TextScoring):
    """Score a text by how it attends to itself."""

    plan: FocusPlan
    weights: FocusWeights

    def scores(self, loaded: LoadedModel, documents: Iterator[Document]) -> Iterator[TextScore | Reject]:
        """Yield the score that follows from each document's attention between spans."""
        for found in measure_documents(loaded, documents, plan=self.plan, work=ForwardWork()):
            if isinstance(found, Reject):
                yield found
            else:
                score = contextual_dependency_score(found.sums, self.plan, found.tokens, self.weights)
                yield found.name, found.spans, score


@dataclass(kw_only=True)
class GainTexts(TextScoring):
    """Score a text by LongFilter (Deng et al. 2025): the mean over its tokens of p_long log(p_long / p_short).

    p_long is given all tokens before, p_short at least the last `short` of them and at most `step - 1` more. The first
    `short` tokens add 0, because both contexts are the same. A text without further tokens has no score.
    """

    short: int
    step: int

    def scores(self, loaded: LoadedModel, documents: Iterator[Document]) -> Iterator[TextScore | Reject]:
        """Yield the information gain of each document, whose tokens are read 1 + (short + step) / step times."""
        for document in documents:
            try:
                yield document.name, None, self._gain(loaded, document.ids)
            except UnscorableSampleError as error:
                yield rejected(document.name, error)

    def _gain(self, loaded: LoadedModel, ids: tuple[int, ...]) -> float | None:
        if len(ids) <= self.short:
            return None
        nlls = token_nlls(loaded, ids), short_context_nlls(loaded, ids, short=self.short, step=self.step)
        gain = float(information_gain(*(each[self.short - 1 :] for each in nlls)).sum()) / (len(ids) - 1)
        if not math.isfinite(gain):
            raise UnscorableSampleError(f"the information gain is {gain}: try dtype bfloat16 or float32")
        return gain
