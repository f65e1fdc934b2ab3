"""Sums over shards, and that what was not measured or not planned is said, not guessed."""

from typing import Any

import pytest

from gateau_dagster.report.effort import duration, effort_sentence, efforts_by_asset, memory, quantity, table_efforts
from gateau_dagster.storage import Stamp
from tests.report.builders import effort, inputs, page_of


def test_sums_and_ratios() -> None:
    (table,) = table_efforts({"cam": [effort(2.0, 1.0), effort(4.0, 3.0, peak_memory=7)]})
    assert (table.shards, table.measured, table.compared, table.samples, table.tokens) == (2, 2, 2, 20, 40_000)
    assert (table.seconds, table.planned_seconds, table.ratio) == (6.0, 4.0, 1.5)
    assert table.speed == pytest.approx(8e11 / 6)
    assert table.share_of_peak == pytest.approx(8e11 / 6 / 1e12)
    assert (table.planned_tokens, table.planned_flops, table.peak_memory) == (38_000, 7.6e11, 3 * 2**29)


def test_the_ratio_is_of_shards_with_both() -> None:
    (table,) = table_efforts({"cam": [effort(2.0, 1.0), effort(50.0, None), {}]})
    assert (table.shards, table.measured, table.compared) == (3, 2, 1)
    assert (table.ratio, table.seconds, table.compared_seconds) == (2.0, 52.0, 2.0)
    assert table.planned_tokens is None, "a sum over some of the shards would look like a wrong plan"
    (table,) = table_efforts({"cam": [{}, {}]})
    assert (table.shards, table.measured, table.speed, table.share_of_peak, table.ratio) == (2, 0, None, None, None)


def test_unknown_time_of_a_plan_leaves_its_tokens() -> None:
    plan: dict[str, Any] = {"samples": 10, "tokens": 5, "flops": None, "seconds": None}
    (table,) = table_efforts({"cam": [effort(planned=None) | {"planned": plan}]})
    assert (table.compared, table.ratio, table.planned_tokens, table.planned_flops) == (0, None, 5, None)
    assert "cannot be compared" in effort_sentence([table])


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


def test_the_page_says_what_was_not_measured() -> None:
    shards = {"cam": [effort(2.0, 1.0), effort(3.0, None), {}], "perplexity/long": [{}]}
    text = page_of(inputs(9, efforts=shards)).text("effort")
    missing = ("cam: 1 shard of 3 without a measurement", "cam: 1 shard of 2 without a planned time", "not measured")
    assert all(said in text for said in ("2.00 times the plan", *missing))
    assert "all rows were kept, or nothing measured them" in page_of(inputs(9, efforts={})).text("absent")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(None, "–"), (0.04, "0.0 s"), (9.96, "10 s"), (99.0, "99 s"), (150, "2.5 min"), (9000, "2.5 h")],
)
def test_durations(seconds: float | None, text: str) -> None:
    assert duration(seconds) == text


def test_quantities_and_memory() -> None:
    assert [quantity(value) for value in (None, 0.0, 950.0, 1250.0, 3.4e15)] == ["–", "0", "950", "1.25 k", "3.4 P"]
    assert [memory(size) for size in (None, 5 * 2**20, 3 * 2**29)] == ["–", "5 MiB", "1.5 GiB"]
