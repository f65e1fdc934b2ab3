"""Eq. 1: mean and exponential, the row, and what cannot be a row."""

import dataclasses
import math

import numpy as np
import pytest

from gateau_dagster import tables
from gateau_dagster.errors import UnscorableSampleError
from gateau_dagster.models.prompt import build_prompt
from gateau_dagster.scoring.response_perplexity import PerplexityRow, mean_nll_and_perplexity, perplexity_row
from tests.tiny_models import samples, tokenizer


def test_row_has_the_promised_columns() -> None:
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
