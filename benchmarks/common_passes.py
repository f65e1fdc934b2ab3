"""The passes that scoring is made of, one by one, with their FLOPs: for figures a whole sample would mix."""

from collections.abc import Callable
from dataclasses import dataclass

import common_straightforward as straightforward
from common_measure import PeakMemory, say, seconds
from common_models import pass_flops, segment_batches

from gateau_dagster.models.context_attention import context_attention
from gateau_dagster.models.forward import response_states, token_nll
from gateau_dagster.models.loading import LoadedModel
from gateau_dagster.models.prompt import Prompt


@dataclass(frozen=True, kw_only=True)
class Pass:
    """Something to time: what to call, and what it is made of."""

    name: str
    work: Callable[[], object]
    tokens: int
    flops: float


@dataclass(frozen=True, kw_only=True)
class Measured:
    """What one pass took."""

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


def plain_pass(loaded: LoadedModel, prompt: Prompt) -> Pass:
    """theta_A: perplexity alone."""
    return Pass(
        name="perplexity",
        work=lambda: _nll(loaded, [prompt]),
        tokens=prompt.length,
        flops=pass_flops(loaded, [prompt]),
    )


def _nll(loaded: LoadedModel, prompts: list[Prompt]) -> None:
    token_nll(loaded, response_states(loaded, prompts), [token for prompt in prompts for token in prompt.response])


def joint_pass(loaded: LoadedModel, prompt: Prompt) -> Pass:
    """theta_B: perplexity and segment attention of the full prompt."""

    def work() -> None:
        found = context_attention(loaded, prompt)
        token_nll(loaded, found.states, prompt.response)

    flops = pass_flops(loaded, [prompt], attention_rows=True)
    return Pass(name="perplexity and attention", work=work, tokens=prompt.length, flops=flops)


def segment_passes(loaded: LoadedModel, prompt: Prompt, *, segment_length: int, batch_tokens: int) -> Pass:
    """theta_B: all segment prompts of the sample, in packed batches."""
    batches = list(segment_batches(prompt, segment_length=segment_length, batch_tokens=batch_tokens))

    def work() -> None:
        for batch in batches:
            _nll(loaded, batch)

    return Pass(
        name="segment prompts",
        work=work,
        tokens=sum(each.length for batch in batches for each in batch),
        flops=sum(pass_flops(loaded, batch) for batch in batches),
    )


def eager_pass(loaded: LoadedModel, prompt: Prompt) -> Pass:
    """Segment attention by `output_attentions=True`."""
    return Pass(
        name="eager output_attentions",
        work=lambda: straightforward.context_attention(loaded, prompt),
        tokens=prompt.length,
        flops=pass_flops(loaded, [prompt]),
    )


def measure(loaded: LoadedModel, each: Pass, *, base: int, most: int, enough_seconds: float) -> Measured:
    """Peak memory of the first call above `base` bytes, and the times of up to `most` further calls.

    There is no further one once `enough_seconds` have gone; only then the first call, which may meet a cold cache or
    allocator, counts as a time.
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
    return Measured(
        name=each.name,
        tokens=each.tokens,
        flops=each.flops,
        seconds=kept,
        peak_bytes=peak,
        total_peak_bytes=total,
    )
