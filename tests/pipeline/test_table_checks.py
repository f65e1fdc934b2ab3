import polars as pl
import pytest

from gateau_dagster.assets.runs.checks import duplicate_ids, non_finite, reserved_among, scored_or_rejected


def ids(*names: str) -> pl.DataFrame:
    return pl.DataFrame({"sample_id": list(names)}, schema={"sample_id": pl.String()})


def test_repeated_ids() -> None:
    assert duplicate_ids(ids("b", "a", "b", "c", "c", "b")) == ["b", "c"]
    assert duplicate_ids(ids()) == []


@pytest.mark.parametrize(
    ("values", "count"),
    [
        ([1.0, 2.0], 0),
        ([1.0, None, float("nan"), float("inf"), float("-inf")], 4),
        ([], 0),
        ([[1.0, 2.0], []], 0),
        ([[1.0, float("nan")], [None], []], 2),
        ([[], []], 0),
        ([[1.0], None], 1),
    ],
)
def test_values_that_are_no_numbers(values: list[object], count: int) -> None:
    inner = pl.List(pl.Float64()) if any(isinstance(value, list) for value in values) else pl.Float64()
    assert non_finite(pl.Series("x", values, dtype=inner)) == count


def test_full_coverage() -> None:
    found = scored_or_rejected(ids("a", "b", "c"), ids("a", "c"), ids("b"))
    assert found.complete and (found.samples, found.in_table, found.rejected) == (3, 2, 1)


def test_gaps_strangers_and_overlaps_are_named() -> None:
    gap = scored_or_rejected(ids("a", "b"), ids("a"), ids())
    assert not gap.complete and gap.missing == ["b"]
    stranger = scored_or_rejected(ids("a"), ids("a", "z"), ids("y"))
    assert not stranger.complete and stranger.unknown == ["y", "z"]
    both = scored_or_rejected(ids("a", "b"), ids("a", "b"), ids("b"))
    assert not both.complete and both.missing == both.unknown == []


def test_reserved_documents_that_were_trained_on_are_named() -> None:
    """Check by document: a later question about a reserved text counts as well."""
    split = pl.DataFrame(
        {"sample_id": ["a", "b", "c", "d"], "document": ["1", "1", "2", "3"], "reserved": [True, False, False, True]}
    )
    rows = [("a", "long"), ("b", "long"), ("c", "long"), ("d", "short"), ("e", "long")]
    mix = pl.DataFrame(rows, schema=["sample_id", "origin"], orient="row")
    assert reserved_among(mix, split) == ["a", "b"]
    assert reserved_among(mix.filter(pl.col("sample_id") > "b"), split) == []
