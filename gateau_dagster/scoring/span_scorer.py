"""Measure documents for LADM, one pass each."""

from collections import deque
from collections.abc import Generator, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass

import numpy as np
from transformers import PreTrainedTokenizerBase

from gateau_dagster.config.models import Template
from gateau_dagster.data.sample import Reject, Sample
from gateau_dagster.errors import UnscorableSampleError
from gateau_dagster.models.context_attention import require_attention_interface
from gateau_dagster.models.flops import ForwardWork
from gateau_dagster.models.forward import HostCopy
from gateau_dagster.models.loading import LoadedModel
from gateau_dagster.models.memory import out_of_memory_reason, unless_out_of_memory
from gateau_dagster.models.prompt import build_prompt, encode
from gateau_dagster.scoring.focus_scores import (
    FocusPlan,
    FocusSums,
    focus_sums,
)
from gateau_dagster.scoring.sample_stream import read_ahead, rejected
from gateau_dagster.scoring.span_attention import WHAT, pairwise_focus_scores

_AHEAD_TOKENS = 2**17  # tokens of documents that wait for the device


@dataclass(frozen=True, kw_only=True)
class Document:
    """Tokens to measure; `digest` is that of the sample, empty for a plain text."""

    name: str
    digest: str = ""
    ids: tuple[int, ...]


def sample_documents(
    tokenizer: PreTrainedTokenizerBase, samples: Iterable[Sample], *, max_length: int, template: Template
) -> Iterator[Document | Reject]:
    """Yield instruction samples as the whole scoring prompt with the response: context, instruction, response."""
    for sample in samples:
        try:
            ids = build_prompt(tokenizer, sample, max_length=max_length, template=template).ids
        except UnscorableSampleError as error:
            yield rejected(sample.sample_id, error)
        else:
            yield Document(name=sample.sample_id, digest=sample.digest, ids=ids)


def text_ids(tokenizer: PreTrainedTokenizerBase, text: str, *, max_tokens: int | None = None) -> tuple[int, ...]:
    """Return [bos] + E(text), cut at the end to `max_tokens`; bos only if the tokenizer defines one.

    Raises UnscorableSampleError for text that is not Unicode.
    """
    bos = tokenizer.bos_token_id
    assert bos is None or isinstance(bos, int)
    ids = (() if bos is None else (bos,)) + encode(tokenizer, text)
    return ids[:max_tokens]


def documents_ahead(documents: Iterable[Document | Reject]) -> Generator[Document | Reject]:
    """Yield the documents, tokenised in another thread while the device is busy; closing ends the thread
    (`read_ahead`).
    """
    return read_ahead(documents, weight=_weight, limit=_AHEAD_TOKENS)


def _weight(document: Document | Reject) -> int:
    return 1 if isinstance(document, Reject) else 1 + len(document.ids)


_ADVICE = "let the model read fewer tokens, use dtype bfloat16, or a device with more memory"


@dataclass(frozen=True, kw_only=True)
class MeasuredSpans:
    """The N spans of a document and the sums of its PFS; `tokens` counts those that the model read."""

    name: str
    digest: str
    tokens: int
    spans: int
    sums: FocusSums


def measure_documents(
    loaded: LoadedModel, documents: Iterable[Document | Reject], *, plan: FocusPlan, work: ForwardWork
) -> Generator[MeasuredSpans | Reject]:
    """Yield one outcome per document, in order. A document too short for any scored span has empty sums and runs no
    pass.

    Another thread reads some `documents` ahead; it ends when this generator is closed. A document that does not fit
    into memory, or whose attention is not finite, becomes a Reject; a Reject is passed on. Raises GateauError for a
    model whose attention cannot be read.
    """
    require_attention_interface(loaded, WHAT)
    waiting: deque[_Pass | Reject] = deque()
    with closing(documents_ahead(documents)) as ready:
        for document in ready:
            waiting.append(_started(loaded, document, plan, work))
            while waiting and (isinstance(waiting[0], Reject) or waiting[0].ready):
                yield _finished(waiting.popleft(), plan)
    while waiting:
        yield _finished(waiting.popleft(), plan)


@dataclass(frozen=True, kw_only=True)
class _Pass:
    """A pass that has been started; `copy` is None if there is nothing to run."""

    name: str
    digest: str
    tokens: int
    copy: HostCopy | None

    @property
    def ready(self) -> bool:
        return self.copy is None or self.copy.ready


def _started(loaded: LoadedModel, document: Document | Reject, plan: FocusPlan, work: ForwardWork) -> _Pass | Reject:
    if isinstance(document, Reject):
        return document
    ids = document.ids
    if not plan.later(len(ids)):
        return _Pass(name=document.name, digest=document.digest, tokens=len(ids), copy=None)
    scores = unless_out_of_memory(lambda: pairwise_focus_scores(loaded, ids, plan, work).flatten())
    if scores is None:
        reason = out_of_memory_reason(len(ids), _ADVICE)
        return Reject(sample_id=document.name, reason=reason, short_of_memory=True)
    return _Pass(name=document.name, digest=document.digest, tokens=len(ids), copy=HostCopy(scores))


def _finished(one: _Pass | Reject, plan: FocusPlan) -> MeasuredSpans | Reject:
    """Return the measurements or the reject; waits for the device if the pass is not `ready`."""
    if isinstance(one, Reject):
        return one
    pairs = sum(len(plan.earlier(j)) for j in plan.later(one.tokens))
    scores = np.zeros((0, 0)) if one.copy is None else one.copy.array.reshape(-1, pairs)
    if not np.isfinite(scores).all():
        reason = "attention between spans is not finite: try dtype bfloat16 or float32"
        return Reject(sample_id=one.name, reason=reason)
    sums = focus_sums(plan, one.tokens, scores)
    return MeasuredSpans(name=one.name, digest=one.digest, tokens=one.tokens, spans=plan.spans(one.tokens), sums=sums)
