"""Training and evaluation in figures and sentences."""

import math

import polars as pl
import pytest

from gateau_dagster.report.outcome import heldout_sentence, needle_sentence, training_facts

from .builders import heldout, needle, training_log


def test_training_facts() -> None:
    facts = training_facts(training_log(8))
    assert (facts.steps, facts.first_loss, facts.last_loss) == (8, 2.0, 0.25)
    assert (facts.largest_grad_norm, facts.tokens_per_second, facts.not_finite) == (8.0, 1004.5, 0)


def test_training_facts_of_a_meagre_log() -> None:
    facts = training_facts([{"step": 3, "loss": math.inf}, {"step": 4}])
    assert (facts.steps, facts.first_loss, facts.tokens_per_second, facts.not_finite) == (4, None, None, 1)


@pytest.mark.parametrize(
    ("tuned", "words"), [(4.0, "20.0\u00a0% lower than"), (6.0, "20.0\u00a0% higher than"), (5.0, "is equal to")]
)
def test_heldout_sentence(tuned: float, words: str) -> None:
    all_of_checkpoint = (pl.col("bucket") == "all") & (pl.col("model") == "checkpoint")
    table = heldout().with_columns(perplexity=pl.when(all_of_checkpoint).then(tuned).otherwise("perplexity"))
    assert words in heldout_sentence(table)
    assert "Over 3 samples" in heldout_sentence(table)


def test_heldout_sentence_without_one_model() -> None:
    assert "cannot be compared" in heldout_sentence(heldout().filter(model="base"))


def test_needle_sentence() -> None:
    nll = pl.when(pl.col("model") == "base").then(2.5).otherwise(1.25)
    table = needle().with_columns(answer_nll=nll)
    sentence = needle_sentence(table)
    assert "4 cells of the grid: base 25.0\u00a0%, checkpoint 75.0\u00a0%. " in sentence
    assert "in nats per token: base 2.50, checkpoint 1.25;" in sentence
    alone = needle_sentence(table.filter(model="base"))
    assert "base 25.0\u00a0%. " in alone and "base 2.50;" in alone and "checkpoint" not in alone
