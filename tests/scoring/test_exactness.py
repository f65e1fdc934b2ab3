"""Every figure of a sample against the slow obvious reference, for kinds of model, truncation, templates, precision."""

from pathlib import Path

import numpy as np
import pytest
import torch

from gateau_dagster.data.sample import Sample
from gateau_dagster.scoring.contextual_awareness import CamRow
from tests.scoring.scored import cam_figures, compare, references, scoring
from tests.tiny_models import loaded_model, samples, text, tokenizer


@pytest.mark.parametrize("max_length", [4096, 230])
@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3", "mistral"])
def test_agrees_with_the_reference(kind: str, max_length: int) -> None:
    # At 230 tokens three samples are cut; mistral's window of 150 hides some of their context.
    truncated = compare(loaded_model(kind), scoring(), max_length, samples())
    assert truncated == (0 if max_length == 4096 else 3)


@pytest.mark.parametrize("kind", ["gpt2", "gemma2", "gemma3_text", "gpt_oss", "mixtral", "granite", "cohere"])
def test_agrees_with_the_reference_where_logits_or_attention_are_special(kind: str) -> None:
    compare(loaded_model(kind), scoring(), 200, samples()[:1])


@pytest.mark.parametrize("max_length", [4096, 230])
def test_agrees_with_the_reference_in_the_chat_template(max_length: int) -> None:
    compare(loaded_model("llama"), scoring(template="chat", segment_length=50), max_length, samples())


@pytest.mark.parametrize("visible_tokens", [40, 110, 4096])
def test_what_theta_a_is_shown_is_near(visible_tokens: int) -> None:
    compare(loaded_model("llama"), scoring(segment_length=20), 300, samples()[:3], visible_tokens)


@pytest.mark.parametrize("bos", [True, False])
def test_agrees_with_the_reference_with_and_without_bos(bos: bool) -> None:
    compare(loaded_model("qwen2", bos=bos), scoring(batch_tokens=300), 4096, samples()[:1])


def test_is_closer_still_in_a_float64_model() -> None:
    # Not to 1e-15: transformers' eager attention, which the reference runs, rounds its softmax to float32.
    loaded, sample = loaded_model("llama", dtype=torch.float64), samples()[0]
    (want,) = references(loaded, scoring(), 4096, [sample])
    got = cam_figures(loaded, sample)
    assert isinstance(got, CamRow)
    np.testing.assert_allclose(got.segment_attention, want.segment_attention, rtol=1e-6)
    np.testing.assert_allclose(got.segment_perplexity, want.segment_perplexity, rtol=1e-6)


def test_bfloat16_stays_within_a_percent_of_float32() -> None:
    single, half = loaded_model("llama"), loaded_model("llama", dtype=torch.bfloat16)
    half.model.load_state_dict(single.model.state_dict())
    want, got = cam_figures(single, samples()[0]), cam_figures(half, samples()[0])
    np.testing.assert_allclose(np.log(got.segment_perplexity), np.log(want.segment_perplexity), rtol=1e-2)
    np.testing.assert_allclose(got.segment_attention, want.segment_attention, rtol=1e-2)


def test_text_builder_is_ragged_and_repeatable() -> None:
    assert text(1, 40) == text(1, 40) != text(2, 40)
    lengths = {len(tokenizer().encode(sample.context)) for sample in samples()}
    assert len(lengths) == 5


LICENCE = (Path(__file__).parents[2] / "LICENSE").read_text()


def passages() -> list[Sample]:
    """Ragged pieces of the licence, each with a question about it and a passage of it as the answer."""
    pieces = [(0, 3000, 180), (3000, 4100, 95), (5000, 5060, 40), (7000, 9350, 330)]
    return [
        Sample(
            sample_id=f"licence-{start}",
            source="licence",
            context=LICENCE[start:end],
            instruction="What does this part of the licence say?",
            response=LICENCE[end : end + length].strip(),
        )
        for start, end, length in pieces
    ]


@pytest.mark.parametrize(("max_length", "truncated"), [(4096, 0), (600, 3)])
@pytest.mark.parametrize("kind", ["llama", "qwen3", "mistral"])
def test_agrees_with_the_reference_on_real_prose(kind: str, max_length: int, truncated: int) -> None:
    assert compare(loaded_model(kind), scoring(), max_length, passages()) == truncated


@pytest.mark.parametrize("batch_tokens", [1, 700])
def test_agrees_with_the_reference_on_real_prose_in_any_batch(batch_tokens: int) -> None:
    compare(loaded_model("llama"), scoring(batch_tokens=batch_tokens, segment_length=100), 4096, passages())
