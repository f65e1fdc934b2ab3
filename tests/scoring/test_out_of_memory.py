"""Short of memory: batches are halved and the size is remembered, only what does not fit alone is rejected."""

import dataclasses
import json
import os
import subprocess
import sys
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch

from gateau_dagster.data.sample import Reject
from gateau_dagster.models import forward
from gateau_dagster.models.loaded import Meter
from gateau_dagster.models.memory import TokenBudget, unless_out_of_memory
from gateau_dagster.models.prompt import build_prompt
from gateau_dagster.scoring.response_perplexity import PerplexityRow
from gateau_dagster.scoring.segments import CamRow
from tests.kit.tiny_models import loaded_model, samples, tokenizer
from tests.scoring.builders import outcomes

CURE = "lower scoring.max_length, use dtype bfloat16, or a device with more memory"


@dataclasses.dataclass
class Memory:
    """A memory in which a pass over more than `tokens` fails; `tried` holds the tokens of each pass."""

    tokens: int
    tried: list[int] = dataclasses.field(default_factory=list)

    def take(self, tokens: int) -> None:
        self.tried.append(tokens)
        if tokens > self.tokens:
            raise torch.OutOfMemoryError("CUDA out of memory.")

    def bound(self, monkeypatch: pytest.MonkeyPatch) -> "Memory":
        """Let packed passes take from it."""
        own = forward.response_nll

        def tight(loaded: Any, prompts: Any) -> Any:
            self.take(sum(prompt.length for prompt in prompts))
            return own(loaded, prompts)

        monkeypatch.setattr(forward, "response_nll", tight)
        return self


def _rows(made: list[Any]) -> list[list[float]]:
    assert all(isinstance(one.perplexity, PerplexityRow) and isinstance(one.cam, CamRow) for one in made)
    return [[one.perplexity.perplexity, *one.cam.segment_perplexity, *one.cam.segment_attention] for one in made]


def test_a_batch_too_large_is_halved_and_the_size_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = loaded_model("llama")
    want = _rows(outcomes(loaded, samples()))
    memory = Memory(tokens=900).bound(monkeypatch)
    got = _rows(outcomes(loaded, samples(), batch_tokens=6000))
    for mine, theirs in zip(got, want, strict=True):
        assert mine == pytest.approx(theirs, rel=2e-5)
    remembered = TokenBudget(loaded.model, 6000).tokens
    assert 450 <= remembered <= 900  # halved until it fitted, and no further
    failures = [tokens for tokens in memory.tried if tokens > 900]
    assert len(failures) <= 4
    memory.tried.clear()
    outcomes(loaded, samples(), batch_tokens=6000)  # the next shard of the same process
    assert max(memory.tried) <= remembered
    assert TokenBudget(loaded_model("llama").model, 6000).tokens == 6000, "another model starts anew"
    assert TokenBudget(loaded.model, 100).tokens == 100, "the user's bound holds, too"


def test_only_the_prompt_that_does_not_fit_alone_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    lengths = [build_prompt(tokenizer(), sample, max_length=4096).length for sample in samples()]
    longest = max(lengths)
    Memory(tokens=longest - 1).bound(monkeypatch)
    made = outcomes(loaded_model("llama"), samples(), cam=False)
    reason = f"out of memory on a prompt of {longest} tokens: {CURE}"
    for sample, length, outcome in zip(samples(), lengths, made, strict=True):
        if length == longest:
            assert outcome.perplexity == Reject(sample_id=sample.sample_id, reason=reason, short_of_memory=True)
        else:
            assert isinstance(outcome.perplexity, PerplexityRow)


def test_without_memory_for_the_attention_the_perplexity_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded, meter = loaded_model("llama"), Meter()
    want = outcomes(loaded, samples()[:2], cam=False)
    memory, own = Memory(tokens=200), forward.context_attention

    def tight(loaded: Any, prompt: Any) -> Any:
        memory.take(prompt.length)
        return own(loaded, prompt)

    monkeypatch.setattr(forward, "context_attention", tight)
    got = outcomes(loaded, samples()[:2], meter=meter)
    for mine, theirs in zip(got, want, strict=True):
        assert mine.perplexity == theirs.perplexity
    tokens = build_prompt(tokenizer(), samples()[0], max_length=4096).length
    reason = f"out of memory on a prompt of {tokens} tokens: {CURE}"
    assert got[0].cam == Reject(sample_id="s0", reason=reason, short_of_memory=True)
    assert isinstance(got[1].cam, CamRow)  # without context, it takes no such pass
    assert meter.cam.tokens == 0 and meter.perplexity.tokens > tokens


def test_a_segment_that_does_not_fit_rejects_cam_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    Memory(tokens=1).bound(monkeypatch)
    (made,) = outcomes(loaded_model("llama"), samples()[:1], segment_length=200)
    assert isinstance(made.perplexity, PerplexityRow)  # from the attention's pass
    assert isinstance(made.cam, Reject) and made.cam.short_of_memory


@pytest.mark.parametrize("name", ["response_nll", "context_attention", "token_nll"])
def test_other_errors_are_not_taken_for_the_sample(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("shapes cannot be multiplied")

    monkeypatch.setattr(forward, name, broken)
    with pytest.raises(RuntimeError, match="shapes"):
        outcomes(loaded_model("llama"), samples()[:1])


def test_the_failed_pass_leaves_no_tensor_behind() -> None:
    alive: list[weakref.ref[torch.Tensor]] = []

    def inner(states: torch.Tensor) -> None:
        logits = states * 2
        alive.extend([weakref.ref(states), weakref.ref(logits)])
        raise torch.OutOfMemoryError("CUDA out of memory.")

    def run() -> None:
        held = torch.ones(3)
        cycle: list[Any] = [held]
        cycle.append(cycle)  # only the collector frees it
        inner(held)

    assert unless_out_of_memory(run) is None
    assert [reference() for reference in alive] == [None, None]


@pytest.mark.long
def test_under_a_real_limit_of_the_address_space() -> None:
    command = [sys.executable, "-m", "tests.scoring.limited_memory"]
    folder = Path(__file__).parents[2]
    # Of its own arena, the thread that tokenises would ask for more than the limit leaves, and Rust aborts then.
    environment = {**os.environ, "MALLOC_ARENA_MAX": "1"}
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300, check=True, env=environment)
    want, got = (json.loads(line) for line in done.stdout.splitlines())
    long = got.pop(5)
    assert long["short_of_memory"] and long["reason"].endswith(CURE)
    for mine, theirs in zip(got, want * 2, strict=True):
        assert mine["perplexity"] == pytest.approx(theirs["perplexity"], rel=2e-5)
