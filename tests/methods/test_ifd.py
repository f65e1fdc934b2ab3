"""IFD against the ratio written out, and what is excluded."""

import math
from typing import Any

import polars as pl
import pytest

from gateau_dagster import tables
from gateau_dagster.methods.ifd import RESPONSE_ALONE, IfdOptions, ifd
from gateau_dagster.methods.registry import chosen_methods, sample_tables
from tests.kit.error_codes import refused
from tests.methods.configured import configured, scores_of

GIVEN = [1.2, 0.5, 2.0, 2.5, 1.0, 0.3, 0.0]
ALONE = [2.4, 2.0, 1.5, 2.5, 4.0, None, 0.0]  # the last but one could not be scored
TRUNCATED = [0, 0, 0, 0, 7, 0, 0]


def frames() -> tuple[pl.DataFrame, pl.DataFrame]:
    """perplexity/long and response_alone/long of samples s0, s1, ..."""
    ids = [f"s{number}" for number in range(len(GIVEN))]
    given = {"sample_id": ids, "digest": ids, "mean_nll": GIVEN, "truncated_tokens": TRUNCATED}
    alone = {"sample_id": ids, "digest": ids, "mean_nll": ALONE, "response_tokens": [4] * len(ids)}
    stored = tables.schema(tables.PERPLEXITY)
    return (
        pl.DataFrame(given, schema={name: stored[name] for name in given}),
        pl.DataFrame(alone, schema=tables.schema(RESPONSE_ALONE)).drop_nulls(),
    )


def scores(**options: Any) -> list[float | None]:
    """Return the scores of s0, s1, ... in order."""
    stored = dict(zip(["perplexity/long", "response_alone/long"], frames(), strict=True))
    found = scores_of("ifd", stored, options=options)
    assert list(found) == frames()[0]["sample_id"].to_list()
    return list(found.values())


def slow(*, ratio: str = "loss", above_one: str = "exclude", truncated: str = "exclude") -> list[float | None]:
    found = []
    for loss, alone, cut in zip(GIVEN, ALONE, TRUNCATED, strict=True):
        excluded = truncated == "exclude" and cut > 0
        if alone is None or alone == 0 or excluded or (above_one == "exclude" and loss / alone > 1):
            found.append(None)
        else:
            found.append(loss / alone if ratio == "loss" else math.exp(loss) / math.exp(alone))
    return found


@pytest.mark.parametrize("ratio", ["loss", "perplexity"])
@pytest.mark.parametrize("above_one", ["exclude", "keep"])
@pytest.mark.parametrize("truncated", ["exclude", "keep"])
def test_every_option_against_plain_loops(ratio: str, above_one: str, truncated: str) -> None:
    options = {"ratio": ratio, "above_one": above_one, "truncated": truncated}
    for mine, wanted in zip(scores(**options), slow(**options), strict=True):
        assert mine == (None if wanted is None else pytest.approx(wanted, rel=1e-12))


def test_different_versions_of_a_sample_are_an_error() -> None:
    given, alone = frames()
    changed = alone.with_columns(digest=pl.when(pl.col("sample_id") == "s1").then(pl.lit("x")).otherwise("digest"))
    with refused("storage.out_of_date", "perplexity/long.*response_alone/long.*1"):
        ifd(given, changed, IfdOptions())


def test_the_table_that_it_brings_along() -> None:
    config = configured(method="ifd", models={"cherry": {"path": "a/c"}}, options={"ifd": {"model": "cherry"}})
    (table,) = sample_tables(config).values()
    assert (table.asset, table.model, table.columns) == ("response_alone/cherry", "cherry", RESPONSE_ALONE)
    assert list(chosen_methods(config)["ifd"].reads()) == ["perplexity/cherry", "response_alone/cherry"]
