"""Eqs. 3-5 against plain-Python twins and at the edges of float64; the row of `cam`, and what cannot be a row."""

import dataclasses
import math
import sys
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gateau_dagster import tables
from gateau_dagster.data.sample import Reject, Sample
from gateau_dagster.errors import UnscorableSampleError
from gateau_dagster.methods.ifd import RESPONSE_ALONE
from gateau_dagster.models import forward, memory
from gateau_dagster.models.loading import LoadedModel
from gateau_dagster.models.prompt import build_prompt
from gateau_dagster.scoring.cherry_selection import alone_prompt, response_alone_rows
from gateau_dagster.scoring.response_perplexity import PerplexityRow, mean_nll_and_perplexity, perplexity_row
from gateau_dagster.scoring.segments import (
    CamFigures,
    CamRow,
    cam_row,
    contextual_awareness_score,
    importance_score,
    segment_attention_score,
)
from tests.scoring.builders import reference_cas, reference_softmax, running, slowly_divided
from tests.tiny_models import loaded_model, samples, tokenizer

_PAIRS = st.lists(st.tuples(st.floats(1, 1e6), st.floats(0, 1)), min_size=2, max_size=40)


@settings(max_examples=100, deadline=None)
@given(_PAIRS)
def test_scores_agree_with_the_twin(pairs: list[tuple[float, float]]) -> None:
    perplexity, attention = [p for p, _ in pairs], [a for _, a in pairs]
    np.testing.assert_allclose(importance_score(perplexity), reference_softmax(perplexity), rtol=1e-12, atol=1e-300)
    np.testing.assert_allclose(segment_attention_score(attention), reference_softmax(attention), rtol=1e-12)
    cas = contextual_awareness_score(perplexity, attention)
    assert cas == pytest.approx(reference_cas(perplexity, attention), rel=1e-12)
    assert cas is not None and 0 < cas <= 1


def test_known_value() -> None:
    # softmax of (ln 3, 0) is (3/4, 1/4); of (0, 0) is (1/2, 1/2): cosine 0.5 / (sqrt(10)/4 * sqrt(1/2)).
    assert importance_score([math.log(3), 0.0]) == pytest.approx([0.75, 0.25])
    assert contextual_awareness_score([math.log(3), 0.0], [0.0, 0.0]) == pytest.approx(2 / math.sqrt(5))


def test_huge_perplexities_do_not_overflow() -> None:
    with np.errstate(over="raise", invalid="raise"):
        scores = importance_score([1e300, 2.0, 1.5e300])
        assert scores.tolist() == [0.0, 0.0, 1.0]
        assert contextual_awareness_score([1e300, 1e300], [0.1, 0.1]) == pytest.approx(1, rel=1e-12)
    for few in ([], [3.0]):
        assert contextual_awareness_score(few, few) is None


@pytest.mark.parametrize(
    ("perplexity", "attention", "message"),
    [
        ([1.0, math.inf], [0.1, 0.2], "not finite"),
        ([1.0, math.nan], [0.1, 0.2], "not finite"),
        ([1.0, 2.0], [0.1], "2 segment perplexities, but 1 attentions"),
    ],
)
def test_values_that_are_not_finite_or_do_not_go_together_are_refused(
    perplexity: list[float], attention: list[float], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        contextual_awareness_score(perplexity, attention)


def test_module_needs_no_torch() -> None:
    import subprocess

    code = "import sys, gateau_dagster.scoring.segments; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


NLL = [np.array([1.0, 2.0]), np.array([0.5, 0.1])]
ALONE = np.array([0.7, 3.0])


def figures(segments: list[np.ndarray], attention: np.ndarray | None, alone: np.ndarray = ALONE) -> CamFigures:
    return CamFigures(without_context=alone, segments=segments, attention=attention, near=min(len(segments), 1))


def test_row_has_the_promised_columns() -> None:
    assert [field.name for field in dataclasses.fields(CamRow)] == [column.name for column in tables.CAM]


def test_row_from_token_figures() -> None:
    row = cam_row(samples()[0], figures(NLL, np.array([1.0, 3.0, 5.0])), segment_length=2)
    assert row.segment_perplexity == pytest.approx([math.exp(1.5), math.exp(0.3)])
    assert row.segment_attention == [2.0, 5.0]
    assert row.segments == 2
    assert row.cas == contextual_awareness_score(row.segment_perplexity, row.segment_attention)
    assert row.near_probability == pytest.approx([math.exp(-0.5), math.exp(-0.1)])
    assert row.far_probability == pytest.approx([math.exp(-1.0), math.exp(-2.0)])
    assert row.near_segments == 1
    assert row.no_context_probability == pytest.approx([math.exp(-0.7), math.exp(-3.0)])
    assert row.far_segment == [None, None]
    assert row.segment_gain == pytest.approx([0.0, math.exp(-0.5) - math.exp(-0.7) + math.exp(-0.1) - math.exp(-3.0)])
    # Two tokens: e^-1 - e^-0.5 and e^-2 - e^-0.1, both below nothing.
    assert row.far_gain == 0.0
    turned = cam_row(samples()[0], figures(NLL[::-1], np.array([1.0, 3.0, 5.0])), segment_length=2)
    gains = [math.exp(-0.5) - math.exp(-0.7), math.exp(-0.1) - math.exp(-2.0)]
    assert turned.far_gain == pytest.approx(sum(gains) / 2, rel=1e-6)
    assert turned.far_segment == [0, 0] and turned.segment_gain[0] == pytest.approx(sum(gains), rel=1e-6)
    assert (row.sample_id, row.digest) == ("s0", samples()[0].digest)


def test_without_context_there_are_no_segments() -> None:
    row = cam_row(samples()[1], figures([], None), segment_length=2)
    assert row.near_probability == pytest.approx([math.exp(-0.7), math.exp(-3.0)])
    assert row.far_probability == [0.0, 0.0]
    assert (row.segments, row.segment_perplexity, row.segment_attention, row.segment_gain) == (0, [], [], [])
    assert row.far_segment == [None, None]
    assert row.cas is None and row.far_gain is None
    one = cam_row(samples()[0], figures(NLL[:1], np.array([1.0, 3.0])), segment_length=2)
    assert one.segments == 1 and one.cas is None and one.far_gain is None


HUGE = [np.array([1.0]), np.array([800.0]), np.array([1.0])]


@pytest.mark.parametrize(
    ("found", "length", "message"),
    [
        (figures(HUGE, np.ones(3)), 1, r"given segment 2 alone: .* is 800\.0: its perplexity overflows"),
        (figures(NLL, np.ones(3), np.array([0.1, math.nan])), 2, "without context: mean NLL of the response is nan"),
        (figures(NLL, np.array([0.1, math.nan, 0.1])), 2, "attention to the context is not finite"),
    ],
)
def test_what_is_not_finite_is_named_and_unscorable(found: CamFigures, length: int, message: str) -> None:
    with pytest.raises(UnscorableSampleError, match=message):
        cam_row(samples()[0], found, segment_length=length)


def test_the_perplexity_row_has_the_promised_columns() -> None:
    assert [field.name for field in dataclasses.fields(PerplexityRow)] == [column.name for column in tables.PERPLEXITY]


def test_row_holds_what_the_model_saw() -> None:
    sample = samples()[0]
    whole = build_prompt(tokenizer(), sample, max_length=4096)
    prompt = build_prompt(tokenizer(), sample, max_length=whole.length - 7)
    row = perplexity_row(sample, prompt, np.array([1.0, 3.0]))
    assert (row.sample_id, row.digest) == (sample.sample_id, sample.digest)
    assert (row.mean_nll, row.perplexity) == (2.0, pytest.approx(math.exp(2)))
    assert row.token_probability == pytest.approx([math.exp(-1), math.exp(-3)])
    assert row.truncated_tokens == 7
    assert (row.context_tokens, row.response_tokens) == (len(whole.context) - 7, len(whole.response))


@pytest.mark.parametrize(
    ("nll", "message"), [(math.nan, "is nan"), (math.inf, "is inf"), (710.0, "is 710.0: its perplexity overflows")]
)
def test_figures_that_are_not_finite_are_unscorable(nll: float, message: str) -> None:
    with pytest.raises(UnscorableSampleError, match=message):
        mean_nll_and_perplexity(np.array([nll]))
    assert math.isfinite(mean_nll_and_perplexity(np.array([709.0]))[1])
    assert mean_nll_and_perplexity(np.array([1.0, 2.0, 6.0])) == (3.0, pytest.approx(math.exp(3)))


def slow_loss(loaded: LoadedModel, response: str) -> tuple[float, int]:
    """Mean NLL in nats and the number of response tokens."""
    tokenize = loaded.tokenizer
    bos = [] if tokenize.bos_token_id is None else [tokenize.bos_token_id]
    asked, wanted = slowly_divided(tokenize, "### Response: ", response)
    frame = [*bos, *asked]
    logits = loaded.model(torch.tensor([[*frame, *wanted]])).logits[0].double().tolist()
    losses = []
    for place, token in enumerate(wanted):
        row = logits[len(frame) + place - 1]
        largest = max(row)
        losses.append(largest + math.log(math.fsum(math.exp(value - largest) for value in row)) - row[token])
    return math.fsum(losses) / len(losses), len(losses)


def rows(loaded: LoadedModel, chosen: list[Sample], max_length: int = 2048, batch_tokens: int = 200) -> list[Any]:
    return list(response_alone_rows(loaded, chosen, running(max_length, batch_tokens=batch_tokens)))


@pytest.mark.parametrize("bos", [True, False])
@pytest.mark.parametrize("batch_tokens", [1, 100, 10_000])
def test_mean_nll_is_that_of_the_response_behind_its_heading(batch_tokens: int, bos: bool) -> None:
    loaded = loaded_model("llama", bos=bos, dtype=torch.float64)
    found = rows(loaded, samples(), batch_tokens=batch_tokens)
    for row, sample in zip(found, samples(), strict=True):
        loss, count = slow_loss(loaded, sample.response)
        assert list(row) == [column.name for column in RESPONSE_ALONE]
        assert (row["sample_id"], row["digest"], row["response_tokens"]) == (sample.sample_id, sample.digest, count)
        assert row["mean_nll"] == pytest.approx(loss, rel=1e-6)  # the model's norms are in float32


def test_neither_context_nor_instruction_matters() -> None:
    loaded = loaded_model("llama")
    others = [dataclasses.replace(sample, context="", instruction="Other.") for sample in samples()]
    for row, other in zip(rows(loaded, samples()), rows(loaded, others), strict=True):
        assert row["mean_nll"] == other["mean_nll"] and row["digest"] != other["digest"]


def test_the_prompt_is_the_heading_and_the_response() -> None:
    prompt = alone_prompt(tokenizer(), samples()[1], max_length=100)
    assert tokenizer().decode(list(prompt.ids)) == f"<s>### Response: {samples()[1].response}"
    assert prompt.response_span == (len(prompt.prefix), prompt.length)


def test_a_response_without_tokens_or_too_long_is_rejected() -> None:
    chosen = [dataclasses.replace(samples()[0], response=""), samples()[2], samples()[3]]
    length = alone_prompt(tokenizer(), samples()[3], max_length=10_000).length
    empty, short, long = rows(loaded_model("llama"), chosen, max_length=length - 1)
    assert empty == Reject(sample_id="s0", reason="the response has no tokens")
    assert short["sample_id"] == "s2"
    assert long == Reject(
        sample_id="s3", reason=f"the response takes {length} tokens, more than the {length - 1} allowed"
    )


def test_what_does_not_fit_into_memory_is_rejected_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    own = forward.response_nll
    longest = max(alone_prompt(tokenizer(), sample, max_length=10_000).length for sample in samples())

    def tight(loaded: Any, prompts: Any) -> Any:
        if sum(prompt.length for prompt in prompts) >= longest:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return own(loaded, prompts)

    monkeypatch.setattr(forward, "response_nll", tight)
    monkeypatch.setattr(memory, "release_memory", lambda: None)  # takes a third of a second
    found = rows(loaded_model("llama"), samples(), batch_tokens=2 * longest)
    rejected = [row for row in found if isinstance(row, Reject)]
    assert [(one.sample_id, one.short_of_memory) for one in rejected] == [("s3", True)]
    assert rejected[0].reason.startswith(f"out of memory on a prompt of {longest} tokens")
