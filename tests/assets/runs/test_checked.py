"""What each check finds: nothing in what the pipeline made, and what it is for in a table that was tampered with."""

from pathlib import Path

import pytest

from gateau_dagster.assets.runs.checks import checked, checks_of
from gateau_dagster.data.sample import shard_of
from tests.assets.harness import Pipeline, value_of
from tests.assets.runs.tampering import (
    Tamper,
    all_the_same,
    list_with_infinity,
    one_less,
    one_unknown,
    tamper,
    twice,
    with_nan,
)
from tests.project import sample, write_samples


def failed(pipeline: Pipeline, key: str) -> set[str]:
    """The names of an asset's checks that fail."""
    state = pipeline.state()
    asset = state.asset(key)
    return {name for name in checks_of(asset) if not checked(state, asset, name).passed}


@pytest.mark.parametrize(
    ("asset", "shard", "change", "expected"),
    [
        ("raw_long_sft", "1", twice, {"unique_ids"}),
        ("perplexity/short", "1", twice, {"unique_ids"}),
        ("perplexity/short", "0", one_less, {"full_coverage"}),
        ("perplexity/long", "3", one_unknown, {"full_coverage"}),
        ("perplexity/long", "2", with_nan("perplexity"), {"finite_values"}),
        ("perplexity/long", "2", with_nan("mean_nll"), {"finite_values"}),
        ("cam", "1", list_with_infinity, {"finite_values"}),
        ("cam", "1", one_less, {"full_coverage"}),
        ("combined_scores", None, one_less, {"full_coverage"}),
        ("combined_scores", None, twice, {"unique_ids"}),
        ("combined_scores", None, with_nan("hmp"), {"finite_values"}),
        ("combined_scores", None, all_the_same, {"normalisation"}),
        ("selected_subset", None, twice, {"unique_ids"}),
        ("selected_subset", None, with_nan("score"), {"finite_values"}),
    ],
)
def test_each_check_fails_on_what_it_is_for(
    current: Pipeline, store: Path, asset: str, shard: str | None, change: Tamper, expected: set[str]
) -> None:
    tamper(current.state(), asset, shard, change)
    assert failed(current, asset) == expected


def test_all_pass_on_what_the_pipeline_made(current: Pipeline) -> None:
    for asset in ("raw_long_sft", "perplexity/short", "perplexity/long", "cam", "selected_subset", "combined_scores"):
        assert failed(current, asset) == set(), asset


def test_full_coverage_counts_rows_and_rejects(current: Pipeline, store: Path) -> None:
    unusable = sample(100) | {"response": "word " * 600}
    write_samples(current.file.parent / "long.jsonl", [*(sample(number) for number in range(24)), unusable])
    current.refresh()
    state = current.state()
    found = checked(state, state.asset("cam"), "full_coverage")
    assert found.passed
    figures = {name: value_of(found, name) for name in ("samples", "in_table", "rejected", "missing")}  # type: ignore[arg-type]
    assert figures == {"samples": 25, "in_table": 24, "rejected": 1, "missing": "none"}
    shard = f"{shard_of('s00100', 4)}"
    rejected = state.store.read_rejected("cam", [shard])
    assert rejected["sample_id"].to_list() == ["s00100"]
    assert "more than the 512 allowed" in rejected["reason"][0]
