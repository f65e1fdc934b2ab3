"""Score a corpus of plain texts by LADM: one score or reject per text, in the files' order."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from gateau_dagster.config import ModelConfig, ScoringConfig
from gateau_dagster.data.sample import Reject
from gateau_dagster.data.sources import SourceFile
from gateau_dagster.data.text_corpus import CorpusText, ScoredText, TextFields, read_texts
from gateau_dagster.errors import UnscorableSampleError
from gateau_dagster.models.flops import ForwardWork
from gateau_dagster.models.loading import LoadedModel, effective_max_length, load_model
from gateau_dagster.scoring.focus_scores import FocusPlan, FocusWeights, contextual_dependency_score
from gateau_dagster.scoring.span_scorer import Document, MeasuredSpans, measure_documents, text_ids


@dataclass(kw_only=True)
class TextScoring:
    """One pass over the files. `report` receives the bytes read and the texts done so far."""

    files: Sequence[SourceFile]
    fields: TextFields
    plan: FocusPlan
    weights: FocusWeights
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
        outcomes = measure_documents(loaded, self._documents(loaded, longest), plan=self.plan, work=ForwardWork())
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

    def _scored(self, measured: MeasuredSpans) -> ScoredText:
        text, tokens = self._waiting.pop(measured.name)
        return ScoredText(
            name=text.name,
            domain=text.domain,
            tokens=tokens,
            spans=measured.spans,
            score=contextual_dependency_score(measured.sums, self.plan, measured.tokens, self.weights),
            file=text.file,
            record=text.record,
            digest=text.digest,
        )
