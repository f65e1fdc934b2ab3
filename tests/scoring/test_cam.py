"""Every figure of a sample against the slow obvious reference, for kinds of model, batches, truncation, templates."""

import dataclasses
import re

import numpy as np
import pytest
import torch

from gateau_dagster import tables
from gateau_dagster.config import ScoringConfig
from gateau_dagster.data.sample import Reject, Sample
from gateau_dagster.errors import GateauError
from gateau_dagster.scoring import cam
from gateau_dagster.scoring.cam import CamRow, cam_rows, segment_means
from gateau_dagster.scoring.loading import LoadedModel
from gateau_dagster.scoring.perplexity import PerplexityRow, perplexity_rows

from .builders import loaded_model, samples, text, tokenizer
from .reference import reference, reference_model

TOLERANCE = 1e-4  # relative, in float32


def _scoring(**changes: object) -> ScoringConfig:
    return ScoringConfig.model_validate({"max_length": 4096, "segment_length": 32, "dtype": "float32"} | changes)


def _close(got: object, want: object) -> None:
    np.testing.assert_allclose(np.asarray(got, float), np.asarray(want, float), rtol=TOLERANCE, atol=0)


def _compare(loaded: LoadedModel, scoring: ScoringConfig, max_length: int, chosen: list[Sample]) -> int:
    """Assert that all rows agree; returns how many samples were truncated."""
    twin = reference_model(loaded.model)
    rows = list(perplexity_rows(loaded, chosen, max_length=max_length, scoring=scoring))
    cams = list(cam_rows(loaded, chosen, max_length=max_length, scoring=scoring))
    assert [row.sample_id for row in rows] == [row.sample_id for row in cams] == [s.sample_id for s in chosen]
    truncated = 0
    for sample, row, measured in zip(chosen, rows, cams, strict=True):
        assert isinstance(row, PerplexityRow) and isinstance(measured, CamRow)
        want = reference(
            twin,
            loaded.tokenizer,
            sample,
            max_length=max_length,
            segment_length=scoring.segment_length,
            template=scoring.template,
        )
        _close([row.perplexity, row.mean_nll], [want.perplexity, want.mean_nll])
        assert (row.context_tokens, row.response_tokens) == (want.context_tokens, want.response_tokens)
        assert row.truncated_tokens == want.truncated_tokens
        assert row.digest == measured.digest == sample.digest
        assert measured.segments == len(want.segment_perplexity)
        _close(measured.segment_perplexity, want.segment_perplexity)
        _close(measured.segment_attention, want.segment_attention)
        assert (measured.cas is None) == (want.cas is None)
        if want.cas is not None:
            _close(measured.cas, want.cas)
        truncated += want.truncated_tokens > 0
    return truncated


@pytest.mark.parametrize("max_length", [4096, 230])
@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3", "mistral"])
def test_agrees_with_the_reference(kind: str, max_length: int) -> None:
    # At 230 tokens three samples are cut; mistral's window of 150 hides some of their context.
    truncated = _compare(loaded_model(kind), _scoring(), max_length, samples())
    assert truncated == (0 if max_length == 4096 else 3)


@pytest.mark.parametrize("kind", ["gpt2", "gemma2", "gemma3_text", "gpt_oss", "mixtral", "granite", "cohere"])
def test_agrees_with_the_reference_where_logits_or_attention_are_special(kind: str) -> None:
    _compare(loaded_model(kind), _scoring(), 200, samples()[:1])


@pytest.mark.parametrize("batch_tokens", [1, 300, 16_384])
@pytest.mark.parametrize("bos", [True, False])
def test_agrees_with_the_reference_in_any_batch(batch_tokens: int, bos: bool) -> None:
    _compare(loaded_model("qwen2", bos=bos), _scoring(batch_tokens=batch_tokens), 4096, samples()[:1])


@pytest.mark.parametrize("max_length", [4096, 230])
def test_agrees_with_the_reference_in_the_chat_template(max_length: int) -> None:
    _compare(loaded_model("llama"), _scoring(template="chat", segment_length=50), max_length, samples())


def test_is_closer_still_in_a_float64_model() -> None:
    # Not to 1e-15: transformers' eager attention, which the reference runs, rounds its softmax to float32.
    loaded, sample, scoring = loaded_model("llama", dtype=torch.float64), samples()[0], _scoring()
    want = reference(
        reference_model(loaded.model), loaded.tokenizer, sample, max_length=4096, segment_length=32, template="gateau"
    )
    (got,) = cam_rows(loaded, [sample], max_length=4096, scoring=scoring)
    assert isinstance(got, CamRow)
    np.testing.assert_allclose(got.segment_attention, want.segment_attention, rtol=1e-6)
    np.testing.assert_allclose(got.segment_perplexity, want.segment_perplexity, rtol=1e-6)


def test_bfloat16_stays_within_a_percent_of_float32() -> None:
    single, half = loaded_model("llama"), loaded_model("llama", dtype=torch.bfloat16)
    half.model.load_state_dict(single.model.state_dict())
    sample = samples()[0]
    (want,) = cam_rows(single, [sample], max_length=4096, scoring=_scoring())
    (got,) = cam_rows(half, [sample], max_length=4096, scoring=_scoring())
    assert isinstance(want, CamRow) and isinstance(got, CamRow)
    np.testing.assert_allclose(np.log(got.segment_perplexity), np.log(want.segment_perplexity), rtol=1e-2)
    np.testing.assert_allclose(got.segment_attention, want.segment_attention, rtol=1e-2)


def test_batches_change_nothing_beyond_rounding() -> None:
    loaded, sample = loaded_model("llama"), samples()[3]
    rows = [
        next(cam_rows(loaded, [sample], max_length=4096, scoring=_scoring(batch_tokens=tokens)))
        for tokens in (1, 200, 333, 100_000)
    ]
    for row in rows[1:]:
        assert isinstance(row, CamRow) and isinstance(rows[0], CamRow)
        np.testing.assert_allclose(row.segment_perplexity, rows[0].segment_perplexity, rtol=2e-5)
        assert row.segment_attention == rows[0].segment_attention


def test_row_has_the_promised_columns() -> None:
    assert [field.name for field in dataclasses.fields(CamRow)] == [column.name for column in tables.CAM]


def test_sample_without_context_has_no_segments() -> None:
    (row,) = cam_rows(loaded_model("llama"), [samples()[1]], max_length=4096, scoring=_scoring())
    assert row == CamRow(
        sample_id="s1",
        digest=samples()[1].digest,
        segments=0,
        segment_perplexity=[],
        segment_attention=[],
        cas=None,
    )


def test_rejects_stand_in_their_place_and_say_why() -> None:
    good, silent = samples()[0], dataclasses.replace(samples()[1], response="")
    rows = list(cam_rows(loaded_model("llama"), [silent, good], max_length=4096, scoring=_scoring()))
    assert rows[0] == Reject(sample_id="s1", reason="the response has no tokens")
    assert isinstance(rows[1], CamRow)


def test_rows_come_one_at_a_time() -> None:
    taken: list[str] = []

    def source():
        for sample in samples()[:2]:
            taken.append(sample.sample_id)
            yield sample

    rows = cam_rows(loaded_model("llama"), source(), max_length=4096, scoring=_scoring())
    next(rows)
    assert taken == ["s0"]


def test_out_of_memory_rejects_one_sample_with_advice(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: object, **kwargs: object) -> None:
        raise RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes")

    monkeypatch.setattr(cam, "context_attention", full)
    (row,) = cam_rows(loaded_model("llama"), samples()[:1], max_length=4096, scoring=_scoring())
    assert isinstance(row, Reject)
    assert re.search(r"out of memory on a prompt of \d+ tokens: lower scoring.batch_tokens", row.reason)


def test_other_runtime_errors_are_not_taken_for_the_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*args: object, **kwargs: object) -> None:
        raise RuntimeError("shapes cannot be multiplied")

    monkeypatch.setattr(cam, "context_attention", broken)
    with pytest.raises(RuntimeError, match="shapes"):
        list(cam_rows(loaded_model("llama"), samples()[:1], max_length=4096, scoring=_scoring()))


def test_attention_that_is_not_finite_rejects(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cam, "_measure", lambda *_: ([1.0, 2.0], [0.1, float("nan")]))
    (row,) = cam_rows(loaded_model("llama"), samples()[:1], max_length=4096, scoring=_scoring())
    assert isinstance(row, Reject) and "not finite" in row.reason


@pytest.mark.parametrize("kind", ["bloom", "mpt", "mamba"])
def test_model_without_the_interface_is_refused_before_any_sample(kind: str) -> None:
    def never():
        raise AssertionError("a sample was read")
        yield

    with pytest.raises(GateauError, match=f"model type {kind}.*Llama, Qwen or Mistral"):
        list(cam_rows(loaded_model(kind), never(), max_length=4096, scoring=_scoring()))


def test_segment_means_average_each_segments_own_tokens() -> None:
    attention = np.array([1.0, 3.0, 5.0, 7.0, 100.0])
    assert segment_means(attention, 2) == [2.0, 6.0, 100.0]


def test_text_builder_is_ragged_and_repeatable() -> None:
    assert text(1, 40) == text(1, 40) != text(2, 40)
    lengths = {len(tokenizer().encode(sample.context)) for sample in samples()}
    assert len(lengths) == 5
