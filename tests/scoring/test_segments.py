"""Cutting, batching, and the independence of a segment's perplexity from its batch."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateau_dagster.errors import UnscorableSampleError
from gateau_dagster.scoring import segments
from gateau_dagster.scoring.prompt import Prompt, build_prompt
from gateau_dagster.scoring.segments import cut_segments, segment_perplexities, segment_prompts, token_batches

from .builders import loaded_model, samples, tokenizer


@given(st.integers(0, 500), st.integers(1, 200))
def test_segments_cover_the_context_once(tokens: int, length: int) -> None:
    spans = cut_segments(tokens, length)
    assert [t for a, b in spans for t in range(a, b)] == list(range(tokens))
    assert all(b - a == length for a, b in spans[:-1])
    assert len(spans) == -(-tokens // length)


def test_segment_prompts_reuse_the_truncated_contexts_tokens() -> None:
    prompt = build_prompt(tokenizer(), samples()[0], max_length=200)
    assert prompt.truncated_tokens > 0
    cut = segment_prompts(prompt, 30)
    assert sum((p.context for p in cut), ()) == prompt.context
    assert {(p.prefix, p.suffix, p.response) for p in cut} == {(prompt.prefix, prompt.suffix, prompt.response)}


def _prompt(length: int) -> Prompt:
    return Prompt(prefix=(1,), context=(2,) * (length - 3), suffix=(3,), response=(4,))


@settings(max_examples=100)
@given(st.lists(st.integers(3, 40), max_size=30), st.integers(1, 120))
def test_batches_keep_order_and_bound(lengths: list[int], bound: int) -> None:
    prompts = [_prompt(length) for length in lengths]
    batches = list(token_batches(prompts, bound))
    assert [p for batch in batches for p in batch] == prompts
    for batch in batches:
        assert len(batch) == 1 or len(batch) * max(p.length for p in batch) <= bound


def test_batches_are_as_large_as_the_bound_allows() -> None:
    assert [len(batch) for batch in token_batches([_prompt(10)] * 7, 30)] == [3, 3, 1]


def test_a_padded_prompt_scores_as_it_does_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = loaded_model("llama")
    prompt = build_prompt(tokenizer(), samples()[0], max_length=4096)
    sizes: list[int] = []
    own = segments.response_nll

    def counting(loaded, batch):
        sizes.append(len(batch))
        return own(loaded, batch)

    monkeypatch.setattr(segments, "response_nll", counting)
    together = segment_perplexities(loaded, prompt, segment_length=50, batch_tokens=100_000)
    count = len(together)
    assert sizes == [count] and count > 2 and len(prompt.context) % 50
    alone = segment_perplexities(loaded, prompt, segment_length=50, batch_tokens=1)
    assert sizes == [count] + [1] * count
    assert together == pytest.approx(alone, rel=2e-5)


def test_a_perplexity_that_is_not_finite_names_its_segment(monkeypatch: pytest.MonkeyPatch) -> None:
    prompt = build_prompt(tokenizer(), samples()[0], max_length=4096)
    figures = [np.array([1.0]), np.array([800.0]), np.array([1.0])]
    monkeypatch.setattr(segments, "response_nll", lambda _, batch: [figures.pop(0) for _ in batch])
    with pytest.raises(UnscorableSampleError, match=r"given segment 2 alone: .* is 800\.0: its perplexity overflows"):
        segment_perplexities(loaded_model("llama"), prompt, segment_length=50, batch_tokens=1)
