"""Measures documents for LADM, one pass each: instruction samples as their scoring prompt, plain texts as they are."""

from collections import deque
from collections.abc import Generator, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass

import numpy as np
from transformers import PreTrainedTokenizerBase

from gateau_dagster.config.models import Template
from gateau_dagster.data.sample import Reject, Sample
from gateau_dagster.errors import UnscorableSampleError
from gateau_dagster.models.flops import Work
from gateau_dagster.models.forward import HostCopy
from gateau_dagster.models.loading import LoadedModel
from gateau_dagster.models.memory import out_of_memory_reason, unless_out_of_memory
from gateau_dagster.models.prompt import build_prompt, encode
from gateau_dagster.scoring.focus_scores import (
    FocusPlan,
    FocusSums,
    focus_sums,
)
from gateau_dagster.scoring.sample_stream import read_ahead
from gateau_dagster.scoring.span_attention import pairwise_focus_scores, require_span_attention

_AHEAD_TOKENS = 2**17  # of documents that wait, tokenised, for the device
_ADVICE = "let the model read fewer tokens, use dtype bfloat16, or a device with more memory"


@dataclass(frozen=True, kw_only=True)
class Document:
    """Tokens to measure, or why there are none."""

    name: str
    ids: tuple[int, ...] | UnscorableSampleError


@dataclass(frozen=True, kw_only=True)
class Measured:
    """A document's N spans and the sums of its PFS; `tokens` are those that the model read."""

    name: str
    tokens: int
    spans: int
    sums: FocusSums


def measure_documents(
    loaded: LoadedModel, documents: Iterable[Document], *, plan: FocusPlan, work: Work
) -> Generator[Measured | Reject]:
    """One outcome a document, in order. A document too short for any scored span has empty sums and costs no pass.

    `documents` are read in another thread, some ahead, which ends when this generator is closed. A document that does
    not fit into memory, or whose attention is not finite, is a Reject. Raises GateauError for a model whose attention
    cannot be seen.
    """
    require_span_attention(loaded)
    waiting: deque[_Pass | Reject] = deque()
    with closing(read_ahead(documents, weight=_weight, limit=_AHEAD_TOKENS)) as ready:
        for document in ready:
            waiting.append(_started(loaded, document, plan, work))
            while waiting and (isinstance(waiting[0], Reject) or waiting[0].ready):
                yield _finished(waiting.popleft(), plan)
    while waiting:
        yield _finished(waiting.popleft(), plan)


def text_ids(tokenizer: PreTrainedTokenizerBase, text: str, *, max_tokens: int | None = None) -> tuple[int, ...]:
    """[bos] + E(text), cut on the right to `max_tokens`; bos only where the tokenizer defines one.

    Raises UnscorableSampleError for text that is not Unicode.
    """
    bos = tokenizer.bos_token_id
    assert bos is None or isinstance(bos, int)
    ids = (() if bos is None else (bos,)) + encode(tokenizer, text)
    return ids[:max_tokens]


def sample_documents(
    loaded: LoadedModel, samples: Iterable[Sample], *, max_length: int, template: Template
) -> Iterator[Document]:
    """Instruction samples as the whole scoring prompt with the response: context, instruction, response."""
    for sample in samples:
        try:
            ids = build_prompt(loaded.tokenizer, sample, max_length=max_length, template=template).ids
        except UnscorableSampleError as error:
            ids = error
        yield Document(name=sample.sample_id, ids=ids)


@dataclass(frozen=True, kw_only=True)
class _Pass:
    """A pass that has been started; None: nothing to run."""

    name: str
    tokens: int
    copy: HostCopy | None

    @property
    def ready(self) -> bool:
        return self.copy is None or self.copy.ready


def _weight(document: Document) -> int:
    return 1 if isinstance(document.ids, UnscorableSampleError) else 1 + len(document.ids)


def _started(loaded: LoadedModel, document: Document, plan: FocusPlan, work: Work) -> _Pass | Reject:
    ids = document.ids
    if isinstance(ids, UnscorableSampleError):
        return Reject(sample_id=document.name, reason=str(ids))
    if not plan.later(len(ids)):
        return _Pass(name=document.name, tokens=len(ids), copy=None)
    scores = unless_out_of_memory(lambda: pairwise_focus_scores(loaded, ids, plan, work).flatten())
    if scores is None:
        reason = out_of_memory_reason(len(ids), _ADVICE)
        return Reject(sample_id=document.name, reason=reason, short_of_memory=True)
    return _Pass(name=document.name, tokens=len(ids), copy=HostCopy(scores))


def _finished(one: _Pass | Reject, plan: FocusPlan) -> Measured | Reject:
    """Waits for the device where the pass is not `ready`."""
    if isinstance(one, Reject):
        return one
    pairs = sum(len(plan.earlier(j)) for j in plan.later(one.tokens))
    scores = np.zeros((0, 0)) if one.copy is None else one.copy.array.reshape(-1, pairs)
    if not np.isfinite(scores).all():
        reason = "attention between spans is not finite: try dtype bfloat16 or float32"
        return Reject(sample_id=one.name, reason=reason)
    sums = focus_sums(plan, one.tokens, scores)
    return Measured(name=one.name, tokens=one.tokens, spans=plan.spans(one.tokens), sums=sums)
