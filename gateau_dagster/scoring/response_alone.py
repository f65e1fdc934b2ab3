"""Compute s(y) of Cherry Selection: how likely a causal model finds the response without context and instruction."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from transformers import PreTrainedTokenizerBase

from gateau_dagster.data.sample import Reject, Sample
from gateau_dagster.errors import ShortOfMemoryError, UnscorableSampleError
from gateau_dagster.models.forward import NllJob, Passes
from gateau_dagster.models.loading import LoadedModel
from gateau_dagster.models.memory import TokenBudget, out_of_memory_reason
from gateau_dagster.models.prompt import Prompt, divided
from gateau_dagster.scoring.response_perplexity import mean_nll_and_perplexity
from gateau_dagster.scoring.sample_stream import in_order, rejected

if TYPE_CHECKING:
    from gateau_dagster.scoring.sample_table import Row, Running

_ADVICE = "lower scoring.max_length, use dtype bfloat16, or a device with more memory"


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
                raise ShortOfMemoryError(out_of_memory_reason(job.prompt.length, _ADVICE))
            mean, _ = mean_nll_and_perplexity(job.nll)
        except UnscorableSampleError as error:
            return rejected(sample.sample_id, error)
        return {
            "sample_id": sample.sample_id,
            "digest": sample.digest,
            "mean_nll": mean,
            "response_tokens": len(job.prompt.response),
        }
