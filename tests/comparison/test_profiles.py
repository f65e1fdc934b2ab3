"""What samples are like."""

import statistics

import numpy as np
import polars as pl
import pytest

from gateau_dagster.comparison.profiles import OTHERS, SOURCES, UNKNOWN, profile, read_traits, spread

from .frames import frame


def test_a_profile_is_that_of_plain_statistics() -> None:
    given = frame()
    rows = np.arange(60) % 3 == 0
    some = given.filter(pl.Series(rows))
    traits = read_traits(given)
    found = profile(traits, rows)
    assert found.samples == 20
    known = [value for value in some["perplexity"] if value is not None]
    assert 0 < len(known) < 20
    for values, got in ((some["context_tokens"].to_list(), found.context_tokens), (known, found.perplexity)):
        assert got is not None
        assert (got.known, got.mean) == (len(values), pytest.approx(statistics.fmean(values)))
        quartiles = statistics.quantiles(values, n=4, method="inclusive")
        assert [got.low, got.median, got.high] == pytest.approx(quartiles)
    names = [source or UNKNOWN for source in some["source"]]
    assert dict(zip(traits.sources, found.sources, strict=True)) == pytest.approx(
        {source: names.count(source) / 20 for source in traits.sources}
    )
    assert set(traits.sources) == {"book", "code", "paper", UNKNOWN}


def test_small_sources_are_counted_together() -> None:
    names = [f"source {number:02d}" for number in range(SOURCES + 5)] + ["source 03"]
    traits = read_traits(frame(len(names)).with_columns(source=pl.Series(names)))
    assert traits.sources[0] == "source 03"
    assert traits.sources[-1] == OTHERS
    assert len(traits.sources) == SOURCES + 1
    shares = profile(traits, np.ones(len(names), dtype=np.bool_)).sources
    assert shares[-1] == pytest.approx(5 / len(names))
    assert sum(shares) == pytest.approx(1)


def test_nothing_known_is_none() -> None:
    assert spread(np.array([np.nan, np.inf])) is None
    empty = profile(read_traits(frame()), np.zeros(60, dtype=np.bool_))
    assert (empty.samples, empty.context_tokens, sum(empty.sources)) == (0, None, 0)
