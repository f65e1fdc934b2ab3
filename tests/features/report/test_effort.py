"""Sums over shards, and that what was not measured is said, not guessed."""

import pytest

from gateau_dagster.features.report.effort import efforts_by_asset, table_efforts
from gateau_dagster.storage import Stamp
from tests.features.report.builders import effort


def test_sums() -> None:
    (table,) = table_efforts({"cam": [effort(2.0), effort(4.0, peak_memory=7)]})
    assert (table.shards, table.measured, table.samples, table.tokens) == (2, 2, 20, 40_000)
    assert table.speed == pytest.approx(8e11 / 6)
    assert table.share_of_peak == pytest.approx(8e11 / 6 / 1e12)
    assert (table.seconds, table.peak_memory) == (6.0, 3 * 2**29)


def test_shards_without_a_measurement_are_counted() -> None:
    (table,) = table_efforts({"cam": [effort(2.0), effort(50.0), {}]})
    assert (table.shards, table.measured, table.seconds) == (3, 2, 52.0)
    (table,) = table_efforts({"cam": [{}, {}]})
    assert (table.shards, table.measured, table.speed, table.share_of_peak) == (2, 0, None, None)


def test_only_scored_tables_that_exist() -> None:
    stamp = Stamp(fingerprint="f", effort=effort())
    recorded: dict[tuple[str, str | None], Stamp | None] = {
        ("raw_long_sft", "0"): stamp,
        ("cam", "0"): stamp,
        ("cam", "1"): None,
        ("perplexity/x", "0"): stamp,
        ("cam_at/64", "0"): stamp,
        ("cam_at/64", "1"): Stamp(fingerprint="f"),
        ("method_scores/x", "0"): Stamp(fingerprint="f"),
    }
    found = {asset: len(shards) for asset, shards in efforts_by_asset(recorded).items()}
    assert found == {"cam": 1, "perplexity/x": 1, "cam_at/64": 2}
