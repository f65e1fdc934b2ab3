"""Embeddings of instructions under a causal model: the mean of their tokens' last hidden states (Cherry Selection)."""

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch

from gateau_dagster.data.sample import Reject, Sample
from gateau_dagster.errors import ShortOfMemoryError, UnscorableSampleError
from gateau_dagster.models.flops import ModelShape, Work
from gateau_dagster.models.loading import LoadedModel
from gateau_dagster.models.memory import TokenBudget, out_of_memory_reason, unless_out_of_memory
from gateau_dagster.models.packing import lone_states, packed_states, packs_documents
from gateau_dagster.models.prompt import encode
from gateau_dagster.scoring.sample_stream import rejected

if TYPE_CHECKING:
    from gateau_dagster.scoring.sample_table import Row, Running

Vector = npt.NDArray[np.float64]
Ids = tuple[int, ...]

_ADVICE = "use dtype bfloat16, or a device with more memory"


def instruction_embedding_rows(
    loaded: LoadedModel, samples: "Iterable[Sample]", running: "Running"
) -> "Iterator[Row | Reject]":
    """A row (methods.pre_experience.INSTRUCTION_EMBEDDING) or a reject for each sample, in order."""
    budget = TokenBudget(loaded.model, running.scoring.batch_tokens)
    group: list[tuple[Sample, Ids | UnscorableSampleError]] = []
    tokens = 0
    for sample in samples:
        try:
            ids = _instruction_ids(loaded, sample, max_length=running.max_length)
            tokens += len(ids)
        except UnscorableSampleError as error:
            ids = error
        group.append((sample, ids))
        if tokens >= budget.tokens:
            yield from _outcomes(loaded, budget, running.work, group)
            group, tokens = [], 0
    yield from _outcomes(loaded, budget, running.work, group)


def _instruction_ids(loaded: LoadedModel, sample: Sample, *, max_length: int) -> Ids:
    """Token ids of the instruction without bos, which is the same for all; raises UnscorableSampleError."""
    ids = encode(loaded.tokenizer, sample.instruction)
    if not ids:
        raise UnscorableSampleError("the instruction has no tokens")
    if len(ids) >= max_length:
        raise UnscorableSampleError(f"the instruction takes {len(ids)} tokens, and bos, more than {max_length} allowed")
    return ids


def _outcomes(
    loaded: LoadedModel, budget: TokenBudget, work: Work, group: Sequence[tuple[Sample, Ids | UnscorableSampleError]]
) -> "Iterator[Row | Reject]":
    """Those of a group, in order."""
    documents = [ids for _, ids in group if isinstance(ids, tuple)]
    vectors = iter(_embeddings(loaded, budget, work, documents))
    for sample, ids in group:
        found = next(vectors) if isinstance(ids, tuple) else ids
        if isinstance(ids, UnscorableSampleError):
            yield rejected(sample.sample_id, ids)
        elif isinstance(found, UnscorableSampleError):
            yield rejected(sample.sample_id, found)
        elif not np.isfinite(found).all():
            yield Reject(sample_id=sample.sample_id, reason="the hidden states are not finite: try dtype float32")
        else:
            yield {
                "sample_id": sample.sample_id,
                "digest": sample.digest,
                "embedding": found.tolist(),
                "instruction_tokens": len(ids),
            }


def _embeddings(
    loaded: LoadedModel, budget: TokenBudget, work: Work, documents: Sequence[Ids]
) -> list[Vector | UnscorableSampleError]:
    """The embedding of each instruction, float64 [d]; those that do not fit into memory together are halved."""
    if not documents:
        return []
    made = unless_out_of_memory(lambda: _means(loaded, documents))
    if made is not None:
        _charge(loaded, work, documents)
        return list(made.cpu().numpy())
    if len(documents) == 1:
        return [ShortOfMemoryError(out_of_memory_reason(len(documents[0]), _ADVICE))]
    budget.halve(sum(map(len, documents)))
    half = len(documents) // 2
    parts = (documents[:half], documents[half:])
    return [one for part in parts for one in _embeddings(loaded, budget, work, part)]


@torch.no_grad()
def _means(loaded: LoadedModel, documents: Sequence[Ids]) -> torch.Tensor:
    """Mean over the instruction's tokens, behind bos where the tokenizer has one: float64 [n, d]."""
    bos = loaded.tokenizer.bos_token_id
    begin: Ids = () if bos is None else (int(bos),)  # pyright: ignore
    whole = [begin + ids for ids in documents]
    if packs_documents(loaded):
        states, starts = packed_states(loaded, whole)
        rows = [states[start : start + len(ids)] for start, ids in zip(starts, whole, strict=True)]
    else:
        rows = [lone_states(loaded, ids) for ids in whole]
    return torch.stack([row[len(begin) :].double().mean(dim=0) for row in rows])


def _charge(loaded: LoadedModel, work: Work, documents: Sequence[Ids]) -> None:
    bos = int(loaded.tokenizer.bos_token_id is not None)
    lengths = np.array([bos + len(ids) for ids in documents], dtype=np.float64)
    try:
        shape = ModelShape.of(loaded.model.config)
        flops = float(shape.token_flops * lengths.sum() + shape.attention_flops(lengths).sum())
    except AttributeError:  # no heads: a state-space model, whose FLOPs nothing here can tell
        flops = 0.0
    work.add(int(lengths.sum()), flops)
