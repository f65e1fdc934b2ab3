"""Asset checks: each passes on what the pipeline made, and fails on a table that was tampered with."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import polars as pl
import pytest

from assets.runs.checks import checks_of
from gateau_dagster.data.sample import shard_of
from gateau_dagster.pipeline.state import State
from tests.assets.harness import Pipeline, value_of
from tests.project import sample, write_samples

Tamper = Any


@pytest.fixture
def store(small: Pipeline) -> Iterator[Path]:
    """The store, as it was again afterwards."""
    small.refresh()
    store, copy = small.file.parent / "store", small.file.parent / "copy"
    data = small.file.parent / "long.jsonl"
    before = data.read_text()
    shutil.copytree(store, copy)
    yield store
    data.write_text(before)
    shutil.rmtree(store)
    copy.rename(store)


def results(pipeline: Pipeline, asset: str) -> dict[str, dg.AssetCheckEvaluation]:
    """Runs the checks of an asset alone, as the button of the UI does."""
    definitions = pipeline.definitions()
    key, names = dg.AssetKey(asset.split("/")), checks_of(pipeline.state().asset(asset))
    job = definitions.resolve_implicit_global_asset_job_def().get_subset(
        asset_selection=set(), asset_check_selection={dg.AssetCheckKey(key, name) for name in names}
    )
    done = job.execute_in_process(instance=pipeline.instance, raise_on_error=False)
    return {found.check_name: found for found in done.get_asset_check_evaluations()}


def tamper(state: State, asset: str, shard: str | None, change: Tamper) -> None:
    """Rewrites a table under the stamp that it has."""
    stamp = state.stamp(asset, shard)
    assert stamp is not None
    state.store.write(change(state.store.read(asset, shard)), asset, shard, stamp)


def failed(pipeline: Pipeline, asset: str) -> set[str]:
    found = results(pipeline, asset)
    assert set(found) == set(checks_of(pipeline.state().asset(asset)))
    return {name for name, result in found.items() if not result.passed}


def test_a_run_checks_every_asset_that_it_made(small: Pipeline) -> None:
    first = small.runs()[-1]
    records = small.instance.all_logs(first.run_id, of_type=dg.DagsterEventType.ASSET_CHECK_EVALUATION)
    checked: dict[str, set[str]] = {}
    for record in records:
        event = record.get_dagster_event().asset_check_evaluation_data
        checked.setdefault(event.asset_key.to_user_string(), set()).add(event.check_name)
        assert event.passed or event.check_name == "normalisation", (event.asset_key, event.check_name, event.metadata)
    assert checked == {asset.key: set(checks_of(asset)) for asset in small.state().pipeline.assets}


def test_up_to_date_names_the_changed_shards_and_only_them(small: Pipeline, store: Path) -> None:
    changed = [sample(number) for number in range(24)]
    changed[3]["response"] = "another answer ."
    changed[7]["context"] += " more ."
    write_samples(small.file.parent / "long.jsonl", changed)
    shards = sorted({f"{shard_of(name, 4)}" for name in ("s00003", "s00007")})
    for asset in ("raw_long_sft", "cam"):
        found = results(small, asset)["up_to_date"]
        assert not found.passed
        assert value_of(found, "changed_shards") == ", ".join(shards)  # type: ignore[arg-type]
        assert f"{len(shards)} of 4 shards" in value_of(found, "summary")  # type: ignore[arg-type]
        reasons = value_of(found, "reasons")  # type: ignore[arg-type]
        assert [line[3:4] for line in reasons.splitlines()] == shards
    assert not results(small, "report")["up_to_date"].passed
    small.refresh()
    for asset in ("raw_long_sft", "cam", "report"):
        assert results(small, asset)["up_to_date"].passed


def test_up_to_date_sees_a_removed_shard(small: Pipeline, store: Path) -> None:
    (store / "cam" / "2.parquet").unlink()
    found = results(small, "cam")["up_to_date"]
    assert not found.passed
    assert value_of(found, "changed_shards") == "2"  # type: ignore[arg-type]
    assert value_of(found, "reasons") == "- `2`: missing"  # type: ignore[arg-type]


def twice(table: pl.DataFrame) -> pl.DataFrame:
    return pl.concat([table, table.head(1)])


def one_less(table: pl.DataFrame) -> pl.DataFrame:
    return table.slice(1)


def one_unknown(table: pl.DataFrame) -> pl.DataFrame:
    first = pl.when(pl.int_range(pl.len()) == 0)
    return table.with_columns(first.then(pl.lit("nobody")).otherwise("sample_id").alias("sample_id"))


def with_nan(column: str) -> Tamper:
    def change(table: pl.DataFrame) -> pl.DataFrame:
        first = pl.when(pl.int_range(pl.len()) == 0)
        return table.with_columns(first.then(float("nan")).otherwise(column).alias(column))

    return change


def list_with_infinity(table: pl.DataFrame) -> pl.DataFrame:
    return table.with_columns(pl.col("segment_attention").list.concat(pl.lit([float("inf")])))


def all_the_same(table: pl.DataFrame) -> pl.DataFrame:
    return table.with_columns(pl.lit(0.5).alias("score_robust"))


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
    small: Pipeline, store: Path, asset: str, shard: str | None, change: Tamper, expected: set[str]
) -> None:
    tamper(small.state(), asset, shard, change)
    assert failed(small, asset) - failed_before(asset) == expected


def failed_before(asset: str) -> set[str]:
    """Untrained models and two dozen samples: one of the two terms may well decide the rank alone."""
    return set()


def test_all_pass_on_what_the_pipeline_made(small: Pipeline, store: Path) -> None:
    for asset in ("raw_long_sft", "perplexity/short", "perplexity/long", "cam", "selected_subset", "combined_scores"):
        assert failed(small, asset) == failed_before(asset), asset


def test_full_coverage_counts_rows_and_rejects(small: Pipeline, store: Path) -> None:
    unusable = sample(100) | {"response": "word " * 600}
    write_samples(small.file.parent / "long.jsonl", [*(sample(number) for number in range(24)), unusable])
    small.refresh()
    found = results(small, "cam")["full_coverage"]
    assert found.passed
    figures = {name: value_of(found, name) for name in ("samples", "in_table", "rejected", "missing")}  # type: ignore[arg-type]
    assert figures == {"samples": 25, "in_table": 24, "rejected": 1, "missing": "none"}
    shard = f"{shard_of('s00100', 4)}"
    rejected = small.state().store.read_rejected("cam", [shard])
    assert rejected["sample_id"].to_list() == ["s00100"]
    assert "more than the 512 allowed" in rejected["reason"][0]


def test_checks_before_the_first_run_say_that_nothing_is_there(fresh: Pipeline) -> None:
    found = results(fresh, "cam")
    assert set(found) == set(checks_of(fresh.state().asset("cam")))
    assert not any(result.passed for result in found.values())
    assert value_of(found["unique_ids"], "summary") == (  # type: ignore[arg-type]
        "cam has no shard in the store yet. Materialise it, or run `gateau run`."
    )
    assert value_of(found["up_to_date"], "changed_shards") == "0, 1, 2"  # type: ignore[arg-type]


def test_a_damaged_table_fails_its_checks_with_the_file_to_remove(small: Pipeline, store: Path) -> None:
    table = store / "cam" / "1.parquet"
    data = bytearray(table.read_bytes())
    data[4:400] = bytes(396)
    table.write_bytes(data)
    found = results(small, "cam")["unique_ids"]
    assert not found.passed
    assert f"{table} is damaged" in value_of(found, "summary")  # type: ignore[arg-type]
