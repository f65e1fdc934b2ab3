"""Eq. 1: rows, token log-probabilities in any batch and chunk, and what cannot be a row."""

import dataclasses
import math

import numpy as np
import pytest
import torch

from gateau_dagster import tables
from gateau_dagster.config import ScoringConfig
from gateau_dagster.data.sample import Reject
from gateau_dagster.errors import UnscorableSampleError
from gateau_dagster.scoring import perplexity
from gateau_dagster.scoring.perplexity import PerplexityRow, mean_nll_and_perplexity, perplexity_rows, response_nll
from gateau_dagster.scoring.prompt import build_prompt

from .builders import loaded_model, samples, tokenizer

_SCORING = ScoringConfig(dtype="float32")


def test_every_response_token_counts_the_first_included() -> None:
    loaded = loaded_model("llama")
    prompts = [build_prompt(tokenizer(), sample, max_length=4096) for sample in samples()]
    for prompt, nll in zip(prompts, response_nll(loaded, prompts), strict=True):
        logits = loaded.model(input_ids=torch.tensor([prompt.ids])).logits[0].double()
        start = len(prompt.ids) - len(prompt.response)
        want = [-torch.log_softmax(logits[start + i - 1], -1)[t].item() for i, t in enumerate(prompt.response)]
        assert nll.dtype == np.float64
        np.testing.assert_allclose(nll, want, rtol=1e-4)


def test_row_has_the_promised_columns() -> None:
    assert [field.name for field in dataclasses.fields(PerplexityRow)] == [column.name for column in tables.PERPLEXITY]


def test_rows_and_rejects_come_in_order() -> None:
    chosen = samples()
    chosen[1] = dataclasses.replace(chosen[1], response="")
    rows = list(perplexity_rows(loaded_model("llama"), chosen, max_length=230, scoring=_SCORING))
    assert [row.sample_id for row in rows] == ["s0", "s1", "s2", "s3", "s4"]
    assert [isinstance(row, Reject) for row in rows] == [False, True, False, False, False]


def test_prompt_too_long_without_its_context_is_rejected() -> None:
    (row,) = perplexity_rows(loaded_model("llama"), samples()[:1], max_length=20, scoring=_SCORING)
    assert isinstance(row, Reject) and "instruction and response alone take" in row.reason


def test_mean_and_exponential() -> None:
    mean, value = mean_nll_and_perplexity(np.array([1.0, 2.0, 6.0]))
    assert (mean, value) == (3.0, pytest.approx(math.exp(3)))


@pytest.mark.parametrize(
    ("nll", "message"), [(math.nan, "is nan"), (math.inf, "is inf"), (710.0, "is 710.0: its perplexity overflows")]
)
def test_figures_that_are_not_finite_are_unscorable(nll: float, message: str) -> None:
    with pytest.raises(UnscorableSampleError, match=message):
        mean_nll_and_perplexity(np.array([nll]))
    assert math.isfinite(mean_nll_and_perplexity(np.array([709.0]))[1])


def test_a_model_that_overflows_rejects_the_sample() -> None:
    loaded = loaded_model("llama")
    loaded.model.get_output_embeddings().weight.fill_(torch.inf)  # pyright: ignore
    (row,) = perplexity_rows(loaded, samples()[:1], max_length=4096, scoring=_SCORING)
    assert row == Reject(sample_id="s0", reason="mean NLL of the response is nan: try dtype bfloat16 or float32")


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("CUDA out of memory."), MemoryError()])
def test_out_of_memory_rejects_one_sample_and_goes_on(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    own = perplexity.response_nll

    def tight(loaded, prompts):
        if prompts[0].length > 200:
            raise error
        return own(loaded, prompts)

    monkeypatch.setattr(perplexity, "response_nll", tight)
    first, second = perplexity_rows(loaded_model("llama"), samples()[:2], max_length=4096, scoring=_SCORING)
    assert isinstance(first, Reject) and "tokens: lower scoring.max_length" in first.reason
    assert isinstance(second, PerplexityRow)


def test_other_errors_are_not_taken_for_the_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(perplexity, "response_nll", broken)
    with pytest.raises(RuntimeError, match="a bug"):
        list(perplexity_rows(loaded_model("llama"), samples()[:1], max_length=4096, scoring=_SCORING))
