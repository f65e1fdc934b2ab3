"""Compute Pairwise Focus Scores (LADM, Eq. 2): how much attention each span pays to the spans before it.

While the model runs, each layer recomputes the rows softmax(q Kᵀ) of the scored spans in blocks of heads and rows. They
are added up by span. Memory is linear in the sample's length: no T x T matrix exists.
"""

from collections import deque
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from gateau_dagster.config.models import Template
from gateau_dagster.data.sample import Reject, Sample
from gateau_dagster.errors import GateauError, UnscorableSampleError
from gateau_dagster.models.attention_kernels import AttentionSpec, attention_rows, row_blocks
from gateau_dagster.models.context_attention import require_attention_interface
from gateau_dagster.models.flops import ModelShape
from gateau_dagster.models.forward import HostCopy
from gateau_dagster.models.loaded import ForwardWork, LoadedModel
from gateau_dagster.models.mask_pattern import MaskPattern, UnknownAttentionError
from gateau_dagster.models.memory import out_of_memory_reason, unless_out_of_memory
from gateau_dagster.models.model_config import attention_layers_of
from gateau_dagster.models.packing import packed_states
from gateau_dagster.models.prompt import build_prompt, encode
from gateau_dagster.models.shapes import known_shape
from gateau_dagster.scoring.focus_scores import FocusPlan, FocusSums, focus_sums
from gateau_dagster.scoring.sample_stream import read_ahead, rejected

WHAT = "attention between spans"


@torch.no_grad()
def pairwise_focus_scores(
    loaded: LoadedModel, ids: Sequence[int], plan: FocusPlan, work: ForwardWork | None = None
) -> Tensor:
    """Return PFS(i, j) of a sample's tokens `ids` [T]: float64 [layers, Σ_j len(plan.earlier(j))] on the device.

    The order is each j of plan.later, ascending, and for it its i, ascending. A score is the attention weights from the
    tokens of s_j to those of s_i, summed over both and averaged over the layer's heads. Each layer's softmax is in
    float32 (float64 for a float64 model), as the model computes it: causal, with its sliding window, soft cap or sinks.
    Nothing waits for the device. A model pass runs even if no span is scored. `work` is charged for the pass and for
    the rows.

    Raises GateauError for a model whose attention cannot be read (see context_attention.require_attention_interface).
    """
    require_attention_interface(loaded, WHAT)
    collector = _SpanCollector(plan=plan, tokens=len(ids))
    try:
        packed_states(loaded, [ids], collector.observe)
    except UnknownAttentionError as error:
        raise GateauError("models.no_attention", f"{WHAT}: {loaded.name}: {error}: take another model") from error
    if len(collector.layers) != attention_layers_of(loaded.model.config):
        raise GateauError(
            "models.no_attention",
            f"{WHAT}: {loaded.name} returned the attention of {len(collector.layers)} of its "
            f"{attention_layers_of(loaded.model.config)} layers: use an architecture such as Llama, Qwen or Mistral",
        )
    if work is not None:
        shape = known_shape(loaded.model.config)
        work.add(len(ids), 0.0 if shape is None else span_attention_flops(shape, len(ids), plan))
    return torch.stack([layer.to(loaded.device) for layer in collector.layers])


def span_attention_flops(shape: ModelShape, tokens: int, plan: FocusPlan) -> float:
    """Return the FLOPs of one sample: the layers over its tokens, and the recomputed rows of its scored spans."""
    length = plan.span_length
    rows = [shape.attention_row_flops(length, plan.start(j, tokens) + length) for j in plan.later(tokens)]
    return float(shape.pass_flops(np.array([float(tokens)]))[0]) + sum(rows)


@dataclass(kw_only=True)
class _SpanCollector:
    """The PFS of one sample, layer by layer."""

    plan: FocusPlan
    tokens: int
    layers: list[Tensor] = field(default_factory=list)  # one entry per call: float64 [Σ_j len(earlier(j))]

    def observe(self, query: Tensor, key: Tensor, pattern: MaskPattern, how: AttentionSpec) -> None:
        """Add a layer's query [H, T, D] and key [H_kv, T, D]."""
        assert query.shape[1] == self.tokens
        found = [self._focus(query, key, j, pattern, how) for j in self.plan.later(self.tokens)]
        self.layers.append(torch.cat(found) if found else query.new_zeros(0, dtype=torch.float64))

    def _focus(self, query: Tensor, key: Tensor, j: int, pattern: MaskPattern, how: AttentionSpec) -> Tensor:
        """Return PFS(i, j) of the i of plan.earlier(j): float64 [L + 1]."""
        length = self.plan.span_length
        first = self.plan.offset(self.tokens)
        own = self.plan.start(j, self.tokens)
        # Summed by token and then by span: a sum by span within each block would need borders that fit both.
        total = torch.zeros(own, dtype=torch.float64, device=query.device)  # weight of each token before s_j
        for piece, rows in row_pieces(self.tokens, (own, own + length), pattern):
            before = own - piece.start
            if before > 0:
                into = total[piece.start :]
                _add_weights(into, query[:, piece], key[:, piece], rows, how, before, self.plan.variant == "program")
        earlier = self.plan.earlier(j)
        by_span = total[first:].view(j, length).sum(dim=1)
        return by_span[earlier.start : earlier.stop : earlier.step] / query.shape[0]


def row_pieces(tokens: int, rows: tuple[int, int], pattern: MaskPattern) -> Iterator[tuple[slice, tuple[int, int]]]:
    """Yield each run of tokens that sees nothing outside itself and holds some of the rows, counted from its start."""
    begin = 0
    for size in pattern.pieces((tokens,)):
        start, stop = max(rows[0] - begin, 0), min(rows[1] - begin, size)
        if start < stop:
            yield slice(begin, begin + size), (start, stop)
        begin += size


def _add_weights(
    total: Tensor, query: Tensor, key: Tensor, rows: tuple[int, int], how: AttentionSpec, before: int, alone: bool
) -> None:
    """Add to `total` [before] the weights of the query rows, summed over heads and rows, to the first `before` keys.

    `alone`: as if each row saw only these keys. Then a model's attention sinks take no weight either.
    """
    for heads, some in row_blocks(query, key.shape[0], *rows, how):
        first = how.first_key(some.start)
        if first >= before:
            continue  # the window starts after them
        # The whole rows are computed and then cut: the softmax needs every key that the row sees.
        weights = attention_rows(query, key, heads, some, how)[..., : before - first]  # [h, G, R, K]
        if alone:
            # The softmax over these keys. Weights that underflow to 0 give NaN, which rejects the sample.
            scaled = weights / weights.sum(dim=-1, keepdim=True)
            # The window of the span's last rows may start after those keys.
            weights = scaled[:, :, : sum(how.first_key(row) < before for row in range(some.start, some.stop))]
        weights = weights.reshape(-1, weights.shape[-1])
        # A product with ones sums columns faster than `sum` does.
        total[first:before] += weights.new_ones(weights.shape[0]) @ weights


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
    # One document per pass, but many in flight: while a GPU runs, the next documents are queued, and results leave in
    # order.
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
