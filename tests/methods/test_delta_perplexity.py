"""The method `delta_perplexity`: its table from a model, its scores from the table, and bad configurations."""

from functools import cache
from typing import Any

import polars as pl
import pytest

from gateau_dagster import tables
from gateau_dagster.data.sample import Reject
from gateau_dagster.methods.delta_perplexity import COLUMNS
from gateau_dagster.models.loaded import ForwardWork
from tests.methods import measured
from tests.methods.configured import scores_of
from tests.methods.measured import prose
from tests.scoring.builders import slow_lds

OPTIONS = {"segment_length": 64, "pairs": 9, "threshold": -0.04}
TOLERANCE = 5e-6  # relative, of a perplexity: float32 through two layers against float64


def outcomes(work: ForwardWork | None = None) -> list[Any]:
    return measured.outcomes("delta_perplexity", OPTIONS, work)


def scores(found: pl.DataFrame, **options: Any) -> dict[str, float | None]:
    return scores_of("delta_perplexity", {"segment_pairs/long": found}, options=OPTIONS | options)


def test_row_or_reject_for_each_sample_in_order() -> None:
    work = ForwardWork()
    first, second, third, fourth = outcomes(work)
    assert set(first) == set(second) == set(fourth) == set(tables.schema(COLUMNS))
    assert third == Reject(sample_id="c", reason="the response has no tokens")
    assert [row["digest"] for row in (first, second, fourth)] == [prose()[place].digest for place in (0, 1, 3)]
    assert len(first["segment_perplexity"]) == first["tokens"] // 64
    assert len(first["pair_perplexity"]) == len(first["later_segment"]) == len(first["earlier_segment"]) == 9
    assert fourth["segment_perplexity"] == fourth["pair_perplexity"] == []
    segments = sum(len(row["segment_perplexity"]) for row in (first, second))
    assert work.tokens == 64 * segments + 18 * 128 and work.flops > 0


@cache
def rows() -> pl.DataFrame:
    return pl.DataFrame([row for row in outcomes() if not isinstance(row, Reject)], schema=tables.schema(COLUMNS))


def perplexities(found: pl.DataFrame) -> dict[str, tuple[list[float], dict[tuple[int, int], float]]]:
    """P(i) and P(i|j) by sample, as the table has them; without the samples that have no pair."""
    lists = found.filter(pl.col("pair_perplexity").list.len() > 0)
    columns = ("sample_id", "segment_perplexity", "later_segment", "earlier_segment", "pair_perplexity")
    return {
        name: (alone, dict(zip(zip(later, earlier, strict=True), behind, strict=True)))
        for name, alone, later, earlier, behind in lists.select(columns).iter_rows()
    }


@pytest.mark.parametrize(
    ("options", "slow"),
    [
        ({}, {"segments": 512}),
        ({"window": 256}, {"segments": 4}),
        ({"variant": "program"}, {"segments": 512, "program": True}),
        ({"alpha": 3, "beta": 0.5}, {"segments": 512, "alpha": 3, "beta": 0.5}),
        ({"threshold": -0.5}, {"segments": 512, "threshold": -0.5}),
        ({"window": None}, {}),
    ],
)
def test_scores_agree_with_the_definitions(options: dict[str, Any], slow: dict[str, Any]) -> None:
    found = rows()
    got = scores(found, **options)
    assert got.pop("d") is None and "c" not in got
    for name, (alone, behind) in perplexities(found).items():
        want = slow_lds(alone, behind, **({"threshold": -0.04, "segments": len(alone)} | slow))
        assert got.pop(name) == pytest.approx(want, rel=1e-9) and want != 0
    assert not got
