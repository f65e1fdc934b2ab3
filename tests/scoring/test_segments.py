"""Cutting the context, the prompts of its segments, and the mean of each segment's own tokens."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gateau_dagster.models.prompt import build_prompt
from gateau_dagster.scoring.segments import cut_segments, segment_means, segment_prompts

from .builders import samples, tokenizer


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


def test_segment_means_average_each_segments_own_tokens() -> None:
    attention = np.array([1.0, 3.0, 5.0, 7.0, 100.0])
    assert segment_means(attention, 2) == [2.0, 6.0, 100.0]
    assert segment_means(attention[:0], 2) == []
