"""Compute what Cherry Selection reads of a causal model: embeddings of prompts, and s(y) of responses alone.

An embedding is the mean of all last hidden states over a prompt's beginning, and comes with the mean NLL of its tokens.
s(y) says how likely the model finds the response without context and instruction.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch
from transformers import PreTrainedTokenizerBase

from gateau_dagster.data.sample import Reject, Sample
from gateau_dagster.errors import ShortOfMemoryError, UnscorableSampleError
from gateau_dagster.models.forward import NllJob, Passes, token_nll
from gateau_dagster.models.loaded import ForwardWork, LoadedModel
from gateau_dagster.models.memory import TokenBudget, out_of_memory_reason, unless_out_of_memory
from gateau_dagster.models.packing import lone_states, packed_states, packs_documents
from gateau_dagster.models.prompt import Prompt, divided, encode
from gateau_dagster.models.shapes import known_shape
from gateau_dagster.scoring.response_perplexity import mean_nll_and_perplexity
from gateau_dagster.scoring.sample_stream import in_order, rejected
from gateau_dagster.scoring.sample_table import PROMPT_TOKENS

if TYPE_CHECKING:
    from gateau_dagster.scoring.sample_table import Row, Running


Vector = npt.NDArray[np.float64]
Ids = tuple[int, ...]
Measured = tuple[Vector, float]

_LARGEST = math.log(np.finfo(np.float64).max)  # the largest mean NLL whose perplexity is finite
_ADVICE = "use dtype bfloat16, or a device with more memory"


def instruction_embedding_rows(
    loaded: LoadedModel, samples: Iterable[Sample], running: Running
) -> Iterator[Row | Reject]:
    """Yield a row (methods.pre_experience.INSTRUCTION_EMBEDDING) or a reject for each sample, in order."""
    budget = TokenBudget(loaded.model, running.scoring.batch_tokens)
    group: list[tuple[Sample, Ids | UnscorableSampleError]] = []
    tokens = 0
    for sample in samples:
        try:
            ids = prompt_ids(loaded.tokenizer, sample, max_length=running.max_length)
            tokens += len(ids)
        except UnscorableSampleError as error:
            ids = error
        group.append((sample, ids))
        if tokens >= budget.tokens:
            yield from _outcomes(loaded, budget, running.work, group)
            group, tokens = [], 0
    yield from _outcomes(loaded, budget, running.work, group)


def prompt_ids(tokenizer: PreTrainedTokenizerBase, sample: Sample, *, max_length: int) -> Ids:
    """Return `[bos] + E(prompt)`, cut to PROMPT_TOKENS and `max_length`; raise UnscorableSampleError for invalid
    text.
    """
    begin = () if tokenizer.bos_token_id is None else (int(tokenizer.bos_token_id),)  # pyright: ignore
    ids = begin + encode(tokenizer, cherry_prompt(sample))
    return ids[: min(PROMPT_TOKENS, max_length)]


def _outcomes(
    loaded: LoadedModel,
    budget: TokenBudget,
    work: ForwardWork,
    group: Sequence[tuple[Sample, Ids | UnscorableSampleError]],
) -> Iterator[Row | Reject]:
    documents = [ids for _, ids in group if isinstance(ids, tuple)]
    measured = iter(_measured(loaded, budget, work, documents))
    for sample, ids in group:
        found = next(measured) if isinstance(ids, tuple) else ids
        if isinstance(ids, UnscorableSampleError):
            yield rejected(sample.sample_id, ids)
        elif isinstance(found, UnscorableSampleError):
            yield rejected(sample.sample_id, found)
        else:
            yield _outcome(sample, len(ids), *found)


def _outcome(sample: Sample, tokens: int, embedding: Vector, mean_nll: float) -> Row | Reject:
    if not (np.isfinite(embedding).all() and mean_nll < _LARGEST):
        return Reject(
            sample_id=sample.sample_id, reason="the hidden states or the perplexity are not finite: try dtype float32"
        )
    return {
        "sample_id": sample.sample_id,
        "digest": sample.digest,
        "embedding": embedding.tolist(),
        "perplexity": math.exp(mean_nll),
        "prompt_tokens": tokens,
    }


def _measured(
    loaded: LoadedModel, budget: TokenBudget, work: ForwardWork, documents: Sequence[Ids]
) -> list[Measured | UnscorableSampleError]:
    """Return the embedding of each prompt, float64 [d], and its mean NLL in nats; halve groups that do not fit into
    memory.
    """
    if not documents:
        return []
    made = unless_out_of_memory(lambda: _means(loaded, documents))
    if made is not None:
        lengths = np.array([len(ids) for ids in documents], dtype=np.float64)
        shape, flops = known_shape(loaded.model.config), 0.0
        if shape is not None:
            flops = float(shape.pass_flops(lengths).sum() + shape.head_flops(float((lengths - 1).sum())))
        work.add(int(lengths.sum()), flops)
        vectors, losses = (each.cpu().numpy() for each in made)
        return [(vector, float(loss)) for vector, loss in zip(vectors, losses, strict=True)]
    if len(documents) == 1:
        return [ShortOfMemoryError(out_of_memory_reason(len(documents[0]), _ADVICE))]
    # The halves run at once, and later groups are smaller. So a full memory costs one failed pass, and no sample.
    budget.halve(sum(map(len, documents)))
    half = len(documents) // 2
    parts = (documents[:half], documents[half:])
    return [one for part in parts for one in _measured(loaded, budget, work, part)]


@torch.no_grad()
def _means(loaded: LoadedModel, documents: Sequence[Ids]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return means over each prompt's tokens.

    They are the last hidden states, float64 [n, d], with bos included, and the NLL of each token after the first,
    float64 [n].
    """
    if packs_documents(loaded):
        states, starts = packed_states(loaded, documents)
        rows = [states[start : start + len(ids)] for start, ids in zip(starts, documents, strict=True)]
    else:
        rows = [lone_states(loaded, ids) for ids in documents]
    nll = token_nll(loaded, torch.cat([row[:-1] for row in rows]), [token for ids in documents for token in ids[1:]])
    each = nll.split([len(ids) - 1 for ids in documents])
    return torch.stack([row.double().mean(dim=0) for row in rows]), torch.stack([one.mean() for one in each])


_ALONE_ADVICE = "lower scoring.max_length, use dtype bfloat16, or a device with more memory"


def response_alone_rows(loaded: LoadedModel, samples: Iterable[Sample], running: Running) -> Iterator[Row | Reject]:
    """Yield a row (methods.ifd.RESPONSE_ALONE) or a reject for each sample, in order.

    Samples share batches with their neighbours, so an outcome may come some samples later.
    """
    passes = Passes(loaded=loaded, budget=TokenBudget(loaded.model, running.scoring.batch_tokens))

    def started() -> Iterator[_Started]:
        for sample in samples:
            try:
                prompt = alone_prompt(loaded.tokenizer, sample, max_length=running.max_length)
                job = NllJob(prompt=prompt, work=running.work)
                passes.enqueue(job)
            except UnscorableSampleError as error:
                job = error
            yield _Started(sample=sample, job=job)

    return in_order(passes, started())


def alone_prompt(tokenizer: PreTrainedTokenizerBase, sample: Sample, *, max_length: int) -> Prompt:
    """Return `[bos] + E("### Response: " + response)`, whatever the scoring template is; see models.prompt.divided.

    Raises UnscorableSampleError without response tokens, or for more than `max_length` tokens.
    """
    bos = tokenizer.bos_token_id
    assert bos is None or isinstance(bos, int)
    asked, response = divided(tokenizer, "### Response: ", sample.response)
    if not response:
        raise UnscorableSampleError("the response has no tokens")
    prefix = (() if bos is None else (bos,)) + asked
    prompt = Prompt(prefix=prefix, context=(), suffix=(), response=response)
    if prompt.length > max_length:
        raise UnscorableSampleError(f"the response takes {prompt.length} tokens, more than the {max_length} allowed")
    return prompt


@dataclass(frozen=True, kw_only=True)
class _Started:
    """A sample whose pass is queued, or the reason why it has none."""

    sample: Sample
    job: NllJob | UnscorableSampleError

    @property
    def ready(self) -> bool:
        return isinstance(self.job, UnscorableSampleError) or self.job.ready

    def outcome(self) -> Row | Reject:
        sample, job = self.sample, self.job
        try:
            if isinstance(job, UnscorableSampleError):
                raise job
            if job.too_large:
                raise ShortOfMemoryError(out_of_memory_reason(job.prompt.length, _ALONE_ADVICE))
            mean, _ = mean_nll_and_perplexity(job.nll)
        except UnscorableSampleError as error:
            return rejected(sample.sample_id, error)
        return {
            "sample_id": sample.sample_id,
            "digest": sample.digest,
            "mean_nll": mean,
            "response_tokens": len(job.prompt.response),
        }


_TASK, _COMPLETE = (
    "Below is an instruction that describes a task",
    "Write a response that appropriately completes the request.",
)
_FURTHER = f"{_TASK}, paired with an input that provides further context. {_COMPLETE}\n\n"


def cherry_prompt(sample: Sample) -> str:
    """Return the prompt of instruction and context, whatever the scoring template is.

    Source: tianyi-lab/Cherry_LLM, data_analysis.py, prompt `alpaca`.
    """
    asked = f"### Instruction:\n{sample.instruction}\n\n"
    if not sample.context:
        return f"{_TASK}. {_COMPLETE}\n\n{asked}### Response:"
    return f"{_FURTHER}{asked}### Input:\n{sample.context}\n\n### Response:"
