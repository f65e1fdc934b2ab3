"""Compute perplexities of a sample's segments, alone and in pairs, in packed rows that samples share."""

# What it costs: by default up to 5,000 pairs of 256 tokens per sample, 1.3 million tokens. That is as much as forty
# passes over 32,768 tokens. `pairs` bounds it, and the draw depends on the sample only, so that a row never changes
# with others.
#
# The pairs are packed like segment prompts: a pair is a prompt whose response is the later segment. So this needs no
# pass of another kind.

from collections.abc import Generator, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, field

import numpy as np

from gateau_dagster.config import ScoringConfig
from gateau_dagster.data.sample import Reject, Sample
from gateau_dagster.errors import ShortOfMemoryError, UnscorableSampleError
from gateau_dagster.models.forward import NllJob, Passes
from gateau_dagster.models.loaded import ForwardWork, LoadedModel
from gateau_dagster.models.memory import TokenBudget, out_of_memory_reason
from gateau_dagster.models.prompt import Prompt, build_prompt
from gateau_dagster.scoring.dependency_scores import SegmentPairs, choose_pairs
from gateau_dagster.scoring.response_perplexity import mean_nll_and_perplexity
from gateau_dagster.scoring.sample_stream import in_order, read_ahead, rejected

_BATCHES_AHEAD = 2  # batches of tokens of samples that wait for the device
_ADVICE = "use a shorter segment_length, dtype bfloat16, or a device with more memory"


@dataclass(frozen=True, kw_only=True)
class PairPlan:
    """The length of a sample's segments, and how many of their pairs run through the model."""

    segment_length: int = 128
    pairs: int = 5000

    def __post_init__(self) -> None:
        assert self.segment_length >= 2, "a segment's first token is not scored"
        assert self.pairs >= 1


@dataclass(frozen=True, kw_only=True)
class MeasuredPairs:
    """A sample's perplexities; `tokens` are those of its prompt with the response, without the bos."""

    sample: Sample
    tokens: int
    pairs: SegmentPairs


def measure_segment_pairs(
    loaded: LoadedModel,
    samples: Iterable[Sample],
    *,
    plan: PairPlan,
    max_length: int,
    scoring: ScoringConfig,
    work: ForwardWork,
) -> Generator[MeasuredPairs | Reject]:
    """Yield one outcome per sample, in order: P(i) of every segment and P(i|j) of the chosen pairs, without special
    tokens.

    A sample is its scoring prompt with the response, without the bos, cut into whole segments of `plan.segment_length`
    tokens; a shorter last one is dropped. A segment's first token is not scored. Segments of several samples share
    batches of `scoring.batch_tokens` tokens. Another thread reads some `samples` ahead.
    """
    passes = Passes(loaded=loaded, budget=TokenBudget(loaded.model, scoring.batch_tokens))
    prepared = (_prepare(loaded, sample, max_length, scoring) for sample in samples)

    def started(ready: Iterable[_Sample]) -> Iterator[_Sample]:
        for one in ready:
            one.start(passes, plan, work)
            yield one

    limit = _BATCHES_AHEAD * scoring.batch_tokens
    with closing(read_ahead(prepared, weight=lambda one: 1 + len(one.ids), limit=limit)) as ready:
        yield from in_order(passes, started(ready))


@dataclass(kw_only=True)
class _Sample:
    """A sample in progress: `ids` without bos, or the reason why it has none."""

    sample: Sample
    ids: tuple[int, ...]
    problem: UnscorableSampleError | None = None
    chosen: list[tuple[int, int]] = field(default_factory=list)
    alone: list[NllJob] = field(default_factory=list)
    behind: list[NllJob] = field(default_factory=list)

    def start(self, passes: Passes, plan: PairPlan, work: ForwardWork) -> None:
        """Queue the passes: the segments alone, then the pairs; none if there is no pair."""
        length = plan.segment_length
        segments = [self.ids[begin : begin + length] for begin in range(0, len(self.ids) - length + 1, length)]
        self.chosen = choose_pairs(len(segments), plan.pairs, self.sample.digest)
        if self.chosen:
            self.alone = [NllJob(prompt=_behind((), segment), work=work) for segment in segments]
            self.behind = [NllJob(prompt=_behind(segments[j], segments[i]), work=work) for i, j in self.chosen]
        for job in self.alone + self.behind:
            passes.enqueue(job)

    @property
    def ready(self) -> bool:
        """Return whether the outcome is available without waiting."""
        return all(job.ready for job in self.alone) and all(job.ready for job in self.behind)

    def outcome(self) -> MeasuredPairs | Reject:
        """Return the perplexities or the reject; waits for the device if it is not `ready`."""
        try:
            if self.problem is not None:
                raise self.problem
            pairs = SegmentPairs(
                alone=np.array([_perplexity(job, f"segment {i}") for i, job in enumerate(self.alone)]),
                later=np.array([i for i, _ in self.chosen], dtype=np.int64),
                earlier=np.array([j for _, j in self.chosen], dtype=np.int64),
                behind=np.array(
                    [
                        _perplexity(job, f"segment {i} behind {j}")
                        for (i, j), job in zip(self.chosen, self.behind, strict=True)
                    ]
                ),
            )
        except UnscorableSampleError as error:
            return rejected(self.sample.sample_id, error)
        return MeasuredPairs(sample=self.sample, tokens=len(self.ids), pairs=pairs)


def _prepare(loaded: LoadedModel, sample: Sample, max_length: int, scoring: ScoringConfig) -> _Sample:
    try:
        prompt = build_prompt(loaded.tokenizer, sample, max_length=max_length, template=scoring.template)
    except UnscorableSampleError as error:
        return _Sample(sample=sample, ids=(), problem=error)
    bos = loaded.tokenizer.bos_token_id
    ids = prompt.ids
    return _Sample(sample=sample, ids=ids[1:] if ids[0] == bos else ids)


def _behind(earlier: tuple[int, ...], segment: tuple[int, ...]) -> Prompt:
    # All but the segment's first token is the response. Tokens are shared, not copied.
    return Prompt(prefix=earlier, context=(), suffix=segment[:1], response=segment[1:])


def _perplexity(job: NllJob, what: str) -> float:
    if job.too_large:
        raise ShortOfMemoryError(out_of_memory_reason(job.prompt.length, _ADVICE))
    try:
        return mean_nll_and_perplexity(job.nll)[1]
    except UnscorableSampleError as error:
        raise UnscorableSampleError(f"{what}: {error}") from error
