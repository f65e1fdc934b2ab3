"""One sample on its way through the model: which passes it takes, and the outcome once they are done."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from gateau_dagster.data.sample import Reject, Sample
from gateau_dagster.errors import ShortOfMemoryError, UnscorableSampleError
from gateau_dagster.scoring.cam import CamRow, cam_row
from gateau_dagster.scoring.effort import Meter
from gateau_dagster.scoring.host_copy import HostCopy
from gateau_dagster.scoring.memory import out_of_memory_reason
from gateau_dagster.scoring.passes import NllJob, Passes
from gateau_dagster.scoring.perplexity import PerplexityRow, perplexity_row
from gateau_dagster.scoring.prompt import Prompt
from gateau_dagster.scoring.segments import segment_prompts

_ADVICE = "lower scoring.max_length, use dtype bfloat16, or a device with more memory"

_Row = TypeVar("_Row", PerplexityRow, CamRow)


@dataclass(frozen=True, kw_only=True)
class Request:
    """What is wanted of a sample: its row of `perplexity/<model>`, its row of `cam`, or both."""

    sample: Sample
    perplexity: bool
    cam: bool


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """A row or a reject for each table that was asked for; None for one that was not."""

    sample_id: str
    perplexity: PerplexityRow | Reject | None
    cam: CamRow | Reject | None


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """A request with its prompt, or with the reason why there is none."""

    request: Request
    prompt: Prompt | UnscorableSampleError


@dataclass(kw_only=True)
class Measurement:
    """The passes of one sample: `full` over the whole prompt, `segments` with each segment alone, `attention`."""

    prepared: Prepared
    segment_length: int
    full: NllJob | None = None
    attention: HostCopy | None = None
    segments: list[NllJob] = field(default_factory=list)

    def start(self, passes: Passes, meter: Meter) -> None:
        """Run the pass for the attention, put the others in line."""
        prompt, request = self.prepared.prompt, self.prepared.request
        if isinstance(prompt, UnscorableSampleError):
            return
        if request.perplexity:
            self.full = NllJob(prompt=prompt, work=meter.perplexity)
        if request.cam and prompt.context:
            self.attention = passes.attention(prompt, cam=meter.cam, perplexity=self.full)
        if self.full is not None and self.full.copy is None:  # no attention wanted, or no memory for it
            passes.enqueue(self.full)
        if self.attention is not None:
            made = segment_prompts(prompt, self.segment_length)
            self.segments = [NllJob(prompt=one, work=meter.cam) for one in made]
        for job in self.segments:
            passes.enqueue(job)

    @property
    def ready(self) -> bool:
        """Whether the outcome is known and takes no waiting."""
        jobs = [] if self.full is None else [self.full]
        return (self.attention is None or self.attention.ready) and all(job.ready for job in jobs + self.segments)

    def outcome(self) -> Outcome:
        """Rows and rejects; waits for the device where it is not `ready`."""
        request = self.prepared.request
        return Outcome(
            sample_id=request.sample.sample_id,
            perplexity=self._row_or_reject(self._perplexity_row) if request.perplexity else None,
            cam=self._row_or_reject(self._cam_row) if request.cam else None,
        )

    def _row_or_reject(self, make: Callable[[Sample, Prompt], _Row]) -> _Row | Reject:
        sample, prompt = self.prepared.request.sample, self.prepared.prompt
        try:
            if isinstance(prompt, UnscorableSampleError):
                raise prompt
            return make(sample, prompt)
        except UnscorableSampleError as error:
            short = isinstance(error, ShortOfMemoryError)
            return Reject(sample_id=sample.sample_id, reason=str(error), short_of_memory=short)

    def _perplexity_row(self, sample: Sample, prompt: Prompt) -> PerplexityRow:
        assert self.full is not None
        if self.full.too_large:
            raise _short_of_memory(prompt)
        return perplexity_row(sample, prompt, self.full.nll)

    def _cam_row(self, sample: Sample, prompt: Prompt) -> CamRow:
        if not prompt.context:
            return cam_row(sample, [], None, segment_length=self.segment_length)
        if self.attention is None:
            raise _short_of_memory(prompt)
        for job in self.segments:
            if job.too_large:
                raise _short_of_memory(job.prompt)
        nll = [job.nll for job in self.segments]
        return cam_row(sample, nll, self.attention.array, segment_length=self.segment_length)


def _short_of_memory(prompt: Prompt) -> ShortOfMemoryError:
    return ShortOfMemoryError(out_of_memory_reason(prompt.length, _ADVICE))
