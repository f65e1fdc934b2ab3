"""Score samples for `perplexity/<model>` and `cam`: one pass over the full prompt serves both tables."""

# What it does, for a sample of theta_B:
# - One pass over the whole prompt (Eqs. 1 and 4). `perplexity` and the attention of `cam` share it, because it is the
#   most expensive pass.
# - One pass over each segment with instruction and response, and one without context (Eq. 3).
# - All these prompts wait in one queue with those of the neighbouring samples. They fill batches of
#   `scoring.batch_tokens` tokens without padding, since a sample's own prompts are too few or too short for that.
# - Rows come out in the order of the samples, so that whoever saves them needs no index. A long sample can delay the
#   rows of short ones behind it, but not their passes.
#
# What it costs: theta_A takes one pass over the prompt. theta_B takes two to five, since each segment repeats the
# response, and the output layer reads each of its tokens once per segment. Memory is linear in the length: only the
# response's rows of the attention are computed, never a T x T matrix. docs/evidence/benchmarks.md has the figures.
#
# When another way is better:
# - `scoring.segments: screened`, for long responses. It bounds theta_B's cost at about two passes. It leaves segments
#   out, so it serves only methods that read the best segments.
# - `scoring.compile`, for thousands of prompts: the first passes compile, and the scores are the same.
# - transformers' `output_attentions=True`, to check one short sample: a few lines, but memory quadratic in its length.

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch._dynamo.exc import TorchDynamoException

from gateau_dagster.config import ScoringConfig
from gateau_dagster.data.sample import Reject, Sample
from gateau_dagster.errors import GateauError, ShortOfMemoryError, UnscorableSampleError
from gateau_dagster.models.context_attention import require_attention_interface
from gateau_dagster.models.devices import use_flash_attention_3
from gateau_dagster.models.flops import ModelShape
from gateau_dagster.models.forward import HostCopy, NllJob, Passes
from gateau_dagster.models.last_layers import backbone, decoder_layers
from gateau_dagster.models.loaded import LoadedModel, Meter
from gateau_dagster.models.memory import TokenBudget, out_of_memory_reason, retained_memory
from gateau_dagster.models.packing import narrows_last_layer, packs_documents
from gateau_dagster.models.prompt import Prompt, build_prompt
from gateau_dagster.scoring.response_perplexity import PerplexityRow, perplexity_row
from gateau_dagster.scoring.sample_stream import in_order, read_ahead, rejected
from gateau_dagster.scoring.segments import (
    CamFigures,
    CamRow,
    cam_row,
    near_segments,
    parts_of,
    screened_count,
    screened_segments,
    segment_means,
    segment_prompts,
)


def compile_layers(loaded: LoadedModel) -> None:
    """Compile this model's layers for prompts of any length; do nothing the second time.

    The last layer is not compiled if it computes only the rows that are read. Skipping rows saves more, and its hooks
    would be recompiled for each set of rows. Layers of one kind share one compilation, which happens in the first
    passes; these raise GateauError if it fails. The attention functions are not compiled and split the graph, because
    they read lengths in Python.
    """
    # Probe before anything is compiled: the probes use the model's own attention, which is not worth compiling.
    narrow = packs_documents(loaded) and narrows_last_layer(loaded)
    layers = decoder_layers(loaded)
    for layer in layers[:-1] if narrow else layers or [backbone(loaded)]:
        if not isinstance(layer.forward, _Compiled):
            layer.forward = _Compiled(layer.forward)


class _Compiled:
    """A compiled function whose compilation errors name the setting to change."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = torch.compile(function, dynamic=True)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        try:
            return self._function(*args, **kwargs)
        except TorchDynamoException as error:
            lines = " ".join(line.strip() for line in str(error).splitlines()[:3])
            raise GateauError(
                "scoring.compile",
                f"scoring.compile: torch cannot compile this model here ({type(error).__name__}: {lines}). "
                "Remove scoring.compile: scores are the same without it.",
            ) from error


_BATCHES_AHEAD = 2  # batches of tokens that wait for the device
_ADVICE = "lower scoring.max_length, use dtype bfloat16, or a device with more memory"

_Row = TypeVar("_Row", PerplexityRow, CamRow)


@dataclass(frozen=True, kw_only=True)
class Request:
    """The rows that a sample needs: of `perplexity/<model>`, of `cam`, or both.

    attention: whether the row of `cam` has the attention to each segment, and with it CAS.
    """

    sample: Sample
    perplexity: bool
    cam: bool
    attention: bool = True

    @property
    def observed(self) -> bool:
        """Return whether the attention to the context is needed."""
        return self.cam and self.attention


@dataclass(frozen=True, kw_only=True)
class SampleOutcome:
    """A row or a reject for each requested table; None for the others."""

    sample_id: str
    perplexity: PerplexityRow | Reject | None
    cam: CamRow | Reject | None


def score_samples(
    loaded: LoadedModel,
    requests: Iterable[Request],
    *,
    max_length: int,
    scoring: ScoringConfig,
    meter: Meter,
    visible_tokens: int | None = None,
) -> Iterator[SampleOutcome]:
    """Yield one outcome per request, in order. `meter` grows as passes are done.

    Prompts share batches of `scoring.batch_tokens` tokens with neighbouring samples. An outcome comes once the sample's
    last prompt is through, which may be the last of a batch that the next samples fill. Another thread reads and
    tokenises `requests` some samples ahead; it ends when this generator is closed.

    Args:
        max_length: see effective_max_length.
        visible_tokens: tokens of a prompt's end that theta_A is shown, which decide what `cam` calls far; None: all.

    Raises:
        GateauError: `cam` is requested of a model whose attention weights cannot be read, the model cannot be compiled,
            or scoring.attention is not available here.
        Exception: what `requests` raises; samples in an unfilled batch are then lost.
    """
    # Before anything is read, so that a kernel that is missing here is one message and not a reject of each sample.
    if scoring.attention == "fa3":
        use_flash_attention_3(loaded.device, key="scoring.attention")
    if scoring.compile:
        compile_layers(loaded)
    passes = Passes(loaded=loaded, budget=TokenBudget(loaded.model, scoring.batch_tokens))

    # A generator: a sample is started when `in_order` takes it, so no more samples are in flight than the next batch
    # needs.
    def started(prepared: Iterable[_Prepared]) -> Iterator[_SamplePasses]:
        for one in prepared:
            sample = _SamplePasses(prepared=one, scoring=scoring, visible_tokens=visible_tokens)
            sample.start(passes, meter)
            yield sample

    # `closing`, because a generator that is dropped is closed by the garbage collector, at any time and in any thread.
    # The reading thread must have ended when this one has.
    with retained_memory(loaded.device), closing(_prepared(loaded, requests, max_length, scoring)) as prepared:
        yield from in_order(passes, started(prepared))


def _prepared(
    loaded: LoadedModel, requests: Iterable[Request], max_length: int, scoring: ScoringConfig
) -> Generator[_Prepared]:
    def prepare(request: Request) -> _Prepared:
        # In the thread that reads ahead, but raised in the consumer's: it is an error of the model, and no reject.
        if request.observed:
            require_attention_interface(loaded)
        try:
            prompt = build_prompt(
                loaded.tokenizer,
                request.sample,
                max_length=max_length,
                template=scoring.template,
                opening=loaded.opening,
            )
        # Kept as a value: it becomes the sample's reject when its turn comes, so that the order of the outcomes stays.
        except UnscorableSampleError as error:
            prompt = error
        return _Prepared(request=request, prompt=prompt)

    def weight(prepared: _Prepared) -> int:
        # A reject weighs something, too, or a file of nothing but rejects would be read into memory as a whole.
        return 1 if isinstance(prepared.prompt, UnscorableSampleError) else prepared.prompt.length

    return read_ahead(map(prepare, requests), weight=weight, limit=_BATCHES_AHEAD * scoring.batch_tokens)


@dataclass(frozen=True, kw_only=True)
class _Prepared:
    """A request with its prompt, or with the reason why it has none."""

    request: Request
    prompt: Prompt | UnscorableSampleError


@dataclass(kw_only=True)
class _SamplePasses:
    """The passes of one sample.

    full: over the whole prompt, which also gives `attention`. segments: with each segment alone; None for one that
    screening leaves out. alone: without context; the full pass if there is none. visible_tokens: see near_segments.
    """

    prepared: _Prepared
    scoring: ScoringConfig
    visible_tokens: int | None
    full: NllJob | None = None
    attention: HostCopy | None = None
    alone: NllJob | None = None
    segments: list[NllJob | None] = field(default_factory=list)

    @property
    def jobs(self) -> list[NllJob]:
        """Return the passes with segments, and the one without context."""
        return [job for job in (*self.segments, self.alone) if job is not None]

    def start(self, passes: Passes, meter: Meter) -> None:
        """Run the pass for the attention, queue the others."""
        prompt, request = self.prepared.prompt, self.prepared.request
        if isinstance(prompt, UnscorableSampleError):
            return
        # The order matters: the pass for the attention also gives the full prompt's NLL. So that pass comes first, and
        # the NLL is queued only if it did not come out of it.
        if request.perplexity:
            self.full = NllJob(prompt=prompt, work=meter.perplexity)
        if request.observed and prompt.context:
            # Alone and at once: attention is read while the model runs, and for one prompt. It cannot wait in the
            # queue, since the choice of segments may depend on it.
            self.attention = passes.attention(prompt, cam=meter.cam, perplexity=self.full)
        if self.full is not None and self.full.copy is None:  # attention is not needed, or does not fit into memory
            passes.enqueue(self.full)
        # Without context, the whole prompt is the prompt without context.
        if request.cam and not prompt.context and self.full is not None:
            self.alone = self.full
        # If the attention did not fit into memory, the sample is a reject of `cam` in any case. Its segments would be
        # computed for nothing.
        elif request.cam and (self.attention is not None or not prompt.context or not request.attention):
            # A segment that is left out keeps its place as None: the columns of `cam` are lists by segment.
            made, read = segment_prompts(prompt, self.scoring.segment_length), self._read(prompt, passes.shape)
            self.segments = [
                NllJob(prompt=one, work=meter.cam) if place in read else None for place, one in enumerate(made)
            ]
            self.alone = NllJob(prompt=prompt.with_context(()), work=meter.cam)
            for job in self.jobs:
                passes.enqueue(job)

    def _read(self, prompt: Prompt, shape: ModelShape | None) -> Collection[int]:
        """Return the segments that are read alone. Only where some are left out does the attention have to be there."""
        length = self.scoring.segment_length
        # The number depends on the model's shape and on lengths only. So `gateau plan` counts the same segments before
        # a model is loaded.
        count = segments = -(-len(prompt.context) // length)
        if self.scoring.segments == "screened":
            count = int(screened_count(parts_of(prompt), length, shape)[0])
        # The attention is fetched from the device only below this line: reading it waits for all queued passes.
        if count >= segments:
            return range(segments)
        attention = None if self.attention is None else segment_means(self.attention.array, length)
        return screened_segments(
            prompt, count=count, segment_length=length, near=self._near(prompt), attention=attention
        )

    def _near(self, prompt: Prompt) -> int:
        context = len(prompt.context)
        return near_segments(
            context,
            prompt.length - context,
            segment_length=self.scoring.segment_length,
            visible_tokens=self.visible_tokens,
        )

    @property
    def ready(self) -> bool:
        """Return whether the outcome is available without waiting."""
        # Only asks whether copies have arrived, and never waits. `in_order` calls it after each sample.
        jobs = self.jobs if self.full is None else [self.full, *self.jobs]
        return (self.attention is None or self.attention.ready) and all(job.ready for job in jobs)

    def outcome(self) -> SampleOutcome:
        """Return rows and rejects; waits for the device if it is not `ready`."""
        request = self.prepared.request
        return SampleOutcome(
            sample_id=request.sample.sample_id,
            perplexity=self._row_or_reject(self._perplexity_row) if request.perplexity else None,
            cam=self._row_or_reject(self._cam_row) if request.cam else None,
        )

    def _row_or_reject(self, make: Callable[[Sample, Prompt], _Row]) -> _Row | Reject:
        # Table by table: a sample whose `cam` does not fit into memory still has its perplexity.
        sample, prompt = self.prepared.request.sample, self.prepared.prompt
        try:
            if isinstance(prompt, UnscorableSampleError):
                raise prompt
            return make(sample, prompt)
        except UnscorableSampleError as error:
            return rejected(sample.sample_id, error)

    def _perplexity_row(self, sample: Sample, prompt: Prompt) -> PerplexityRow:
        assert self.full is not None
        if self.full.too_large:
            raise _short_of_memory(prompt)
        return perplexity_row(sample, prompt, self.full.nll)

    def _cam_row(self, sample: Sample, prompt: Prompt) -> CamRow:
        # No attention although it was asked for: its pass ran out of memory.
        if self.attention is None and prompt.context and self.prepared.request.attention:
            raise _short_of_memory(prompt)
        assert self.alone is not None
        for job in self.jobs:
            if job.too_large:
                raise _short_of_memory(job.prompt)
        figures = CamFigures(
            without_context=self.alone.nll,
            segments=[None if job is None else job.nll for job in self.segments],
            attention=None if self.attention is None else self.attention.array,
            context=len(prompt.context),
            tail=prompt.length - len(prompt.context),
            near=self._near(prompt),
            screened=self.scoring.segments == "screened",
        )
        return cam_row(sample, figures, segment_length=self.scoring.segment_length)


def _short_of_memory(prompt: Prompt) -> ShortOfMemoryError:
    return ShortOfMemoryError(out_of_memory_reason(prompt.length, _ADVICE))
