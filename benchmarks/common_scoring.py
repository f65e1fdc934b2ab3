"""Scoring by the pipeline and by a straightforward implementation, how far their tables are apart, and single passes.

The straightforward side is what one writes at first with Hugging Face's own tools:

- Perplexity: `model(input_ids)` and a cross-entropy over labels that are -100 outside the response, which is what
  `model(input_ids, labels=labels).loss` does: logits of every position, in float32.
- Attention: a separate second model pass, eager, with `output_attentions=True`: every layer's T x T matrix.
- Segments: batches of 32 prompts, padded to the longest, with an attention mask and the logits of every position.

Nothing there is slow on purpose. Sums and means are in float32 as torch gives them, the last steps in float64.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from common import PeakMemory, say, seconds
from common_models import pass_flops, segment_batches
from torch import Tensor

from gateau_dagster.config import ScoringConfig
from gateau_dagster.data.sample import Reject, Sample
from gateau_dagster.models import context_attention as attention_pass
from gateau_dagster.models.forward import response_states, token_nll
from gateau_dagster.models.loaded import LoadedModel, Meter
from gateau_dagster.models.prompt import Prompt, build_prompt
from gateau_dagster.scoring.response_perplexity import PerplexityRow
from gateau_dagster.scoring.scorer import Request, score_samples
from gateau_dagster.scoring.segments import CamRow, contextual_awareness_score, cut_segments

SEGMENTS_PER_BATCH = 32
_IGNORED = -100


@dataclass(frozen=True, kw_only=True)
class Cam:
    """A row of `cam`."""

    segment_perplexity: list[float]
    segment_attention: list[float]
    cas: float | None


@torch.no_grad()
def perplexities(loaded: LoadedModel, prompts: Sequence[Prompt]) -> list[float]:
    """Return exp of the mean NLL of each prompt's response, from one padded batch."""
    longest = max(prompt.length for prompt in prompts)
    ids = torch.zeros((len(prompts), longest), dtype=torch.long)
    mask = torch.zeros_like(ids)
    labels = torch.full_like(ids, _IGNORED)
    for row, prompt in enumerate(prompts):
        ids[row, : prompt.length] = torch.tensor(prompt.ids)
        mask[row, : prompt.length] = 1
        start, stop = prompt.response_span
        labels[row, start:stop] = ids[row, start:stop]
    device = loaded.device
    ids, mask, labels = ids.to(device), mask.to(device), labels.to(device)
    padded = {"attention_mask": mask} if len(prompts) > 1 else {}
    logits = loaded.model(input_ids=ids, use_cache=False, **padded).logits.float()
    nll = torch.nn.functional.cross_entropy(
        logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), ignore_index=_IGNORED, reduction="none"
    ).view(len(prompts), longest - 1)
    counted = (labels[:, 1:] != _IGNORED).sum(dim=1)
    return [math.exp(value) for value in (nll.sum(dim=1) / counted).tolist()]


@torch.no_grad()
def context_attention(loaded: LoadedModel, prompt: Prompt) -> Tensor:
    """Return a_t of Eq. 4 [C], from the whole matrices of all layers."""
    own = loaded.model.config._attn_implementation or "sdpa"
    loaded.model.set_attn_implementation("eager")
    try:
        ids = torch.tensor([prompt.ids], device=loaded.device)
        matrices = loaded.model(input_ids=ids, use_cache=False, output_attentions=True).attentions
    finally:
        loaded.model.set_attn_implementation(own)
    (first, last), (start, stop) = prompt.context_span, prompt.response_span
    layers = [matrix[0, :, start:stop, first:last].float().mean(dim=(0, 1)) for matrix in matrices]
    return torch.stack(layers).mean(dim=0).double().cpu()


def segment_perplexities(loaded: LoadedModel, prompt: Prompt, segment_length: int) -> list[float]:
    """Return PPL_B(y | s_i, x) of every segment."""
    spans = cut_segments(len(prompt.context), segment_length)
    prompts = [prompt.with_context(prompt.context[begin:end]) for begin, end in spans]
    batches = range(0, len(prompts), SEGMENTS_PER_BATCH)
    return [value for at in batches for value in perplexities(loaded, prompts[at : at + SEGMENTS_PER_BATCH])]


def segment_attention(loaded: LoadedModel, prompt: Prompt, segment_length: int) -> list[float]:
    """Return the mean of a_t over each segment."""
    attention = context_attention(loaded, prompt)
    return [attention[begin:end].mean().item() for begin, end in cut_segments(len(prompt.context), segment_length)]


def perplexity(loaded: LoadedModel, sample: Sample, max_length: int) -> float:
    """Return a row of `perplexity/<model>`, from the text."""
    return perplexities(loaded, [build_prompt(loaded.tokenizer, sample, max_length=max_length)])[0]


def cam(loaded: LoadedModel, sample: Sample, max_length: int, segment_length: int) -> Cam:
    """Return a row of `cam`, from the text."""
    prompt = build_prompt(loaded.tokenizer, sample, max_length=max_length)
    importance = segment_perplexities(loaded, prompt, segment_length)
    attention = segment_attention(loaded, prompt, segment_length)
    cas = contextual_awareness_score(importance, attention)
    return Cam(segment_perplexity=importance, segment_attention=attention, cas=cas)


def score(
    loaded: LoadedModel, samples: Iterable[Sample], scoring: ScoringConfig, *, cam: bool, meter: Meter | None = None
) -> tuple[list[PerplexityRow], list[CamRow]]:
    """Score samples as the shards are scored: perplexity, and with `cam` the CAM rows, too. No sample may be rejected.

    Args:
        meter: counts tokens and FLOPs.
    """
    requests = [Request(sample=sample, perplexity=True, cam=cam) for sample in samples]
    outcomes = score_samples(
        loaded, requests, max_length=scoring.max_length, scoring=scoring, meter=Meter() if meter is None else meter
    )
    rows: list[PerplexityRow] = []
    cam_rows: list[CamRow] = []
    for outcome in outcomes:
        if outcome.perplexity is None or isinstance(outcome.perplexity, Reject) or isinstance(outcome.cam, Reject):
            raise RuntimeError(f"a sample was rejected: {outcome.perplexity} {outcome.cam}")
        rows.append(outcome.perplexity)
        cam_rows += [] if outcome.cam is None else [outcome.cam]
    return rows, cam_rows


def difference(found: Sequence[float], expected: Sequence[float]) -> float:
    """Return the largest relative difference; infinite where one side is not finite or lacks a value."""
    if len(found) != len(expected):
        return math.inf
    differences = [abs(a - b) / abs(b) if b else abs(a) for a, b in zip(found, expected, strict=True)]
    return max((each if math.isfinite(each) else math.inf for each in differences), default=0.0)


def cam_differences(found: Sequence[CamRow | Cam], expected: Sequence[CamRow | Cam]) -> dict[str, float]:
    """Return the largest relative difference of each figure of `cam`, over all samples."""
    pairs = list(zip(found, expected, strict=True))
    worst = {
        name: max((difference(getattr(a, name), getattr(b, name)) for a, b in pairs), default=0.0)
        for name in ("segment_perplexity", "segment_attention")
    }
    scores = [(a.cas, b.cas) for a, b in pairs]
    worst["cas"] = max((0.0 if a is b else difference([a or 0.0], [b or 0.0]) for a, b in scores), default=0.0)
    return worst


PassKind = Literal["plain", "joint", "segments", "eager"]
_NAMES: dict[PassKind, str] = {
    "plain": "perplexity",
    "joint": "perplexity and attention",
    "segments": "segment prompts",
    "eager": "eager output_attentions",
}


@dataclass(frozen=True, kw_only=True)
class Pass:
    """Something to time: what to call, and its size."""

    name: str
    work: Callable[[], None]
    tokens: int
    flops: float


@dataclass(frozen=True, kw_only=True)
class Measured:
    """The seconds, tokens, FLOPs and peak memory of one pass."""

    name: str
    tokens: int
    flops: float
    seconds: list[float]
    peak_bytes: int  # above what was held at the start
    total_peak_bytes: int  # with it

    @property
    def best(self) -> float:
        """The shortest time: the one that other work on the machine has disturbed least."""
        return min(self.seconds)


def make_pass(kind: PassKind, loaded: LoadedModel, prompt: Prompt, *, segment_length: int, batch_tokens: int) -> Pass:
    """Return a pass that scoring is made of.

    Args:
        kind: `plain` is theta_A's pass, perplexity alone; `joint` is theta_B's over the full prompt, perplexity and
            segment attention; `segments` are all segment prompts in packed batches; `eager` is segment attention by
            `output_attentions=True`.
    """
    batches = [[prompt]]
    if kind == "segments":
        batches = list(segment_batches(prompt, segment_length=segment_length, batch_tokens=batch_tokens))

    def work() -> None:
        if kind == "eager":
            context_attention(loaded, prompt)
        elif kind == "joint":
            token_nll(loaded, attention_pass.context_attention(loaded, prompt).states, prompt.response)
        else:
            for batch in batches:
                token_nll(loaded, response_states(loaded, batch), [token for each in batch for token in each.response])

    return Pass(
        name=_NAMES[kind],
        work=work,
        tokens=sum(each.length for batch in batches for each in batch),
        flops=sum(pass_flops(loaded, batch, attention_rows=kind == "joint") for batch in batches),
    )


def measure(loaded: LoadedModel, each: Pass, *, base: int, most: int, enough_seconds: float) -> Measured:
    """Measure peak memory of the first call above `base` bytes, and the times of up to `most` other calls.

    The calls end once `enough_seconds` have passed. The first call may meet a cold cache or allocator; its time counts
    only if it is the only one.
    """
    memory = PeakMemory(loaded.device)
    times = [seconds(each.work, loaded.device)]
    total = memory.read()
    peak = max(0, total - base)
    while len(times) <= most and sum(times) < enough_seconds:
        times.append(seconds(each.work, loaded.device))
    kept = times[1:] or times
    rate = each.flops / min(kept) / 1e9
    say(f"  {each.name}: {each.tokens} tokens, {min(kept):.3f} s, {rate:.0f} GFLOP/s, {peak / 2**20:.0f} MiB")
    size = {"name": each.name, "tokens": each.tokens, "flops": each.flops}
    return Measured(**size, seconds=kept, peak_bytes=peak, total_peak_bytes=total)
