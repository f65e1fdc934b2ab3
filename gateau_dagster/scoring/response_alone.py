"""s(y) of Cherry Selection: how likely a causal model finds the response without context and instruction."""

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from transformers import PreTrainedTokenizerBase

from gateau_dagster.data.sample import Reject, Sample
from gateau_dagster.errors import ShortOfMemoryError, UnscorableSampleError
from gateau_dagster.models.loading import LoadedModel
from gateau_dagster.models.memory import TokenBudget, out_of_memory_reason
from gateau_dagster.models.prompt import Prompt, encode
from gateau_dagster.scoring.batched_passes import NllJob, Passes
from gateau_dagster.scoring.perplexity import mean_nll_and_perplexity

if TYPE_CHECKING:
    from gateau_dagster.scoring.sample_table import Row, Running

_ADVICE = "lower scoring.max_length, use dtype bfloat16, or a device with more memory"


@dataclass(frozen=True, kw_only=True)
class _Waiting:
    """A sample whose pass is to come, or the reason why there is none."""

    sample: Sample
    job: NllJob | UnscorableSampleError

    @property
    def ready(self) -> bool:
        return isinstance(self.job, UnscorableSampleError) or self.job.ready


def response_alone_rows(
    loaded: LoadedModel, samples: "Iterable[Sample]", running: "Running"
) -> "Iterator[Row | Reject]":
    """A row (methods.ifd.RESPONSE_ALONE) or a reject for each sample, in order.

    Samples share batches with those around them, so that an outcome may come some samples later.
    """
    passes = Passes(loaded=loaded, budget=TokenBudget(loaded.model, running.scoring.batch_tokens))
    waiting: deque[_Waiting] = deque()
    for sample in samples:
        try:
            prompt = alone_prompt(loaded.tokenizer, sample, max_length=running.max_length)
            job = NllJob(prompt=prompt, work=running.work)
            passes.enqueue(job)
        except UnscorableSampleError as error:
            job = error
        waiting.append(_Waiting(sample=sample, job=job))
        passes.run(all_of_them=False)
        while waiting and waiting[0].ready:
            yield _outcome(waiting.popleft())
    passes.run(all_of_them=True)
    yield from map(_outcome, waiting)


def alone_prompt(tokenizer: PreTrainedTokenizerBase, sample: Sample, *, max_length: int) -> Prompt:
    """`[bos] + E("### Response: ") + E(response)`, whatever the scoring template is.

    Raises UnscorableSampleError without response tokens, or when there are more than `max_length` tokens.
    """
    bos = tokenizer.bos_token_id
    assert bos is None or isinstance(bos, int)
    response = encode(tokenizer, sample.response)
    if not response:
        raise UnscorableSampleError("the response has no tokens")
    prefix = (() if bos is None else (bos,)) + encode(tokenizer, "### Response: ")
    prompt = Prompt(prefix=prefix, context=(), suffix=(), response=response)
    if prompt.length > max_length:
        raise UnscorableSampleError(f"the response takes {prompt.length} tokens, more than the {max_length} allowed")
    return prompt


def _outcome(waiting: _Waiting) -> "Row | Reject":
    sample, job = waiting.sample, waiting.job
    try:
        if isinstance(job, UnscorableSampleError):
            raise job
        if job.too_large:
            raise ShortOfMemoryError(out_of_memory_reason(job.prompt.length, _ADVICE))
        mean, _ = mean_nll_and_perplexity(job.nll)
    except UnscorableSampleError as error:
        short = isinstance(error, ShortOfMemoryError)
        return Reject(sample_id=sample.sample_id, reason=str(error), short_of_memory=short)
    return {
        "sample_id": sample.sample_id,
        "digest": sample.digest,
        "mean_nll": mean,
        "response_tokens": len(job.prompt.response),
    }
