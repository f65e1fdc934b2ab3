import re

import numpy as np
import polars as pl
import pytest

from gateau_dagster.selection.combine import combine
from gateau_dagster.selection.degeneration import check, check_all, distinct
from tests.selection.tables_in_test import cam_table, perplexity_table

COUNT = 40


@pytest.fixture
def scores() -> pl.DataFrame:
    """Forty samples: perplexities from 2 to 2000, of which theta_A's are a little higher, and unrelated CAS."""
    rng = np.random.default_rng(0)
    long = np.exp(rng.uniform(np.log(2), np.log(2000), COUNT))
    short = long * np.exp(rng.uniform(0, 1, COUNT))
    segments = long[:, None] * np.exp(rng.uniform(0, 2, (COUNT, 6)))
    return combine(
        perplexity_table(short.tolist(), context_tokens=16),
        perplexity_table(long.tolist(), context_tokens=48),
        cam_table(segments.tolist(), rng.uniform(0.3, 0.6, COUNT).tolist()),
        preset="robust",
        alpha=0.8,
    )


def test_the_papers_softmax_over_raw_perplexities_is_called_one_hot(scores: pl.DataFrame) -> None:
    found = check(scores, preset="paper", alpha=0.8)
    assert found.degenerate
    assert found.largest_softmax_share is not None and found.largest_softmax_share > 0.9
    assert found.distinct_hmp <= 5
    assert "paper: softmax over raw perplexities is one-hot" in found.sentence
    assert f"{found.distinct_hmp} distinct HMP in 40 samples" in found.sentence


def test_the_official_scripts_score_is_called_one_sided(scores: pl.DataFrame) -> None:
    found = check(scores, preset="official", alpha=0.8)
    assert found.degenerate
    assert found.spearman_cas is not None and found.spearman_cas > 0.95
    assert "official: CAS decides the rank" in found.sentence
    assert "has the weight 0.8" in found.sentence


def made_of(scores: pl.DataFrame, hmp: float, cas: float) -> pl.DataFrame:
    """Forty samples whose robust score is so much of the rank of one unrelated term and of another's."""
    rng = np.random.default_rng(5)
    first, second = rng.permutation(COUNT), rng.permutation(COUNT)
    return scores.with_columns(
        hmp_robust=pl.Series(first / COUNT), cas_robust=pl.Series(second / COUNT),
        score_robust=pl.Series((hmp * first + cas * second) / COUNT),
    )  # fmt: skip


def test_robust_passes(scores: pl.DataFrame) -> None:
    found = check(scores, preset="robust", alpha=0.8)
    assert not found.degenerate
    assert found.distinct_score > 30
    assert found.sentence.startswith(f"robust: {found.distinct_score} distinct scores in 40 samples; ")


def test_both_terms_count_where_the_score_follows_both(scores: pl.DataFrame) -> None:
    alike = made_of(scores, 1.0, 0.0).with_columns(cas_robust="hmp_robust")
    for alpha in (0.2, 0.5, 0.8):
        found = check(alike, preset="robust", alpha=alpha)
        assert not found.degenerate and found.sentence == "robust: 40 distinct scores in 40 samples; both terms count."


FOLLOWS = r"\(.Spearman. with the score {}; {} 0\.\d\d\)"


@pytest.mark.parametrize(
    ("hmp", "cas", "alpha", "wanted"),
    [
        (1.0, 0.05, 0.5, "HMP decides the rank " + FOLLOWS.format(r"1\.00", "CAS") + " at equal weights"),
        (0.05, 1.0, 0.5, "CAS decides the rank " + FOLLOWS.format(r"1\.00", "HMP") + " at equal weights"),
        (1.0, 0.05, 0.8, r"HMP decides the rank \(.*\) with the weight 0\.8"),
        (0.05, 1.0, 0.25, r"CAS decides the rank \(.*\) with the weight 0\.75"),
        (1.0, 0.6, 0.5, "HMP leads the rank " + FOLLOWS.format(r"0\.[89]\d", "CAS") + " at equal weights"),
        (1.0, 0.6, 0.3, r"HMP leads the rank \(.*\) with the weight 0\.3"),
        (1.0, 1.0, 0.5, r"neither term decides the rank alone \(.*: HMP 0\.[67]\d, CAS 0\.[67]\d\)"),
    ],
)
def test_the_sentence_names_the_term_that_makes_the_rank(
    scores: pl.DataFrame, hmp: float, cas: float, alpha: float, wanted: str
) -> None:
    found = check(made_of(scores, hmp, cas), preset="robust", alpha=alpha)
    assert not found.degenerate
    begin, _, shares = found.sentence.partition("; ")
    assert begin == f"robust: {found.distinct_score} distinct scores in 40 samples"
    assert re.fullmatch(wanted + r"\.", shares), shares


def test_one_of_two_terms_of_equal_weight_may_decide(scores: pl.DataFrame) -> None:
    rescored = scores.with_columns(score_robust="hmp_robust")
    assert not check(rescored, preset="robust", alpha=0.5).problems
    (problem,) = check(rescored, preset="robust", alpha=0.49).problems
    assert problem.startswith("HMP decides the rank (Spearman 1.00 with the score) although CAS")
    assert problem.endswith("has the weight 0.51")


def test_a_term_without_weight_may_be_ignored(scores: pl.DataFrame) -> None:
    rescored = scores.with_columns(score_robust="hmp_robust")
    assert not check(rescored, preset="robust", alpha=1.0).problems
    assert check(rescored.with_columns(score_robust="cas_robust"), preset="robust", alpha=1.0).degenerate


def test_equal_scores_are_called_degenerate(scores: pl.DataFrame) -> None:
    flat = scores.with_columns(hmp_robust=pl.lit(0.5), score_robust=pl.lit(0.5))
    found = check(flat, preset="robust", alpha=0.8)
    assert found.spearman_hmp is None
    assert found.problems[:2] == ("1 distinct HMP in 40 samples", "1 distinct scores in 40 samples")


def test_too_few_samples_are_no_basis(scores: pl.DataFrame) -> None:
    for few in (scores.head(0), scores.head(1)):
        assert check(few, preset="robust", alpha=0.8).sentence == "robust: fewer than two samples have both terms."


def test_every_preset_is_checked(scores: pl.DataFrame) -> None:
    assert [found.preset for found in check_all(scores, alpha=0.8)] == ["paper", "official", "robust"]


@pytest.mark.parametrize(
    ("values", "wanted"), [([], 0), ([1.0], 1), ([2.0, 2.0], 1), ([0.0, 1e-9, 1.0], 2), ([3.0, 1.0, 2.0, 1.0], 3)]
)
def test_values_closer_than_the_resolution_count_as_one(values: list[float], wanted: int) -> None:
    assert distinct(np.array(values)) == wanted
