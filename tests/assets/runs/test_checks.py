"""Each check fails on what it is for, names the shards, and passes on what the pipeline made."""

from pathlib import Path

import dagster as dg
import polars as pl
import pytest

from gateau_dagster.assets.runs.checks import check_names, checked, coverage, duplicate_ids, non_finite, reserved_among
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
from tests.kit.project import sample, write_samples


def results(pipeline: Pipeline, asset: str) -> dict[str, dg.AssetCheckEvaluation]:
    """Runs the checks of an asset alone, as the button of the UI does."""
    definitions = pipeline.definitions()
    key, names = dg.AssetKey(asset.split("/")), check_names(pipeline.state().asset(asset))
    job = definitions.resolve_implicit_global_asset_job_def().get_subset(
        asset_selection=set(), asset_check_selection={dg.AssetCheckKey(key, name) for name in names}
    )
    done = job.execute_in_process(instance=pipeline.instance, raise_on_error=False)
    return {found.check_name: found for found in done.get_asset_check_evaluations()}


def test_a_run_checks_every_asset_that_it_made(current: Pipeline) -> None:
    first = current.runs()[-1]
    records = current.instance.all_logs(first.run_id, of_type=dg.DagsterEventType.ASSET_CHECK_EVALUATION)
    checked: dict[str, set[str]] = {}
    for record in records:
        event = record.get_dagster_event().asset_check_evaluation_data
        checked.setdefault(event.asset_key.to_user_string(), set()).add(event.check_name)
        assert event.passed or event.check_name == "normalisation", (event.asset_key, event.check_name, event.metadata)
    assert checked == {asset.key: set(check_names(asset)) for asset in current.state().pipeline.assets}


def test_up_to_date_names_the_changed_and_the_lost_shards_and_only_them(current: Pipeline, store: Path) -> None:
    changed = [sample(number) for number in range(24)]
    changed[3]["response"] = "another answer ."
    changed[7]["context"] += " more ."
    write_samples(current.file.parent / "long.jsonl", changed)
    shards = sorted({f"{shard_of(name, 4)}" for name in ("s00003", "s00007")})
    for asset in ("raw_long_sft", "cam"):
        found = results(current, asset)["up_to_date"]
        assert not found.passed
        assert value_of(found, "changed_shards") == ", ".join(shards)  # type: ignore[arg-type]
        assert f"{len(shards)} of 4 shards" in value_of(found, "summary")  # type: ignore[arg-type]
        reasons = value_of(found, "reasons")  # type: ignore[arg-type]
        assert [line[3:4] for line in reasons.splitlines()] == shards
    assert not results(current, "report")["up_to_date"].passed
    current.refresh()
    for asset in ("raw_long_sft", "cam", "report"):
        assert results(current, asset)["up_to_date"].passed
    (store / "cam" / "2.parquet").unlink()
    found = results(current, "cam")["up_to_date"]
    assert not found.passed
    assert value_of(found, "changed_shards") == "2"  # type: ignore[arg-type]
    assert value_of(found, "reasons") == "- `2`: missing"  # type: ignore[arg-type]


def test_checks_before_the_first_run_say_that_nothing_is_there(fresh: Pipeline) -> None:
    found = results(fresh, "cam")
    assert set(found) == set(check_names(fresh.state().asset("cam")))
    assert not any(result.passed for result in found.values())
    summary = value_of(found["unique_ids"], "summary")  # type: ignore[arg-type]
    assert str(summary).startswith("cam has no shard in the store yet.") and "`gateau run --config " in str(summary)
    assert value_of(found["up_to_date"], "changed_shards") == "0, 1, 2"  # type: ignore[arg-type]


def test_a_damaged_table_fails_its_checks_with_the_file_to_remove(current: Pipeline, store: Path) -> None:
    table = store / "cam" / "1.parquet"
    data = bytearray(table.read_bytes())
    data[4:400] = bytes(396)
    table.write_bytes(data)
    found = results(current, "cam")["unique_ids"]
    assert not found.passed
    assert f"{table} is damaged" in value_of(found, "shard_1")  # type: ignore[arg-type]


def by_partition(pipeline: Pipeline, asset: str, check: str) -> dict[str | None, str]:
    """What Dagster has on record of each partition, and of the whole."""
    key = dg.AssetCheckKey(dg.AssetKey(asset.split("/")), check)
    found = pipeline.instance.event_log_storage.get_asset_check_partition_info([key])
    return {each.partition_key: each.latest_execution_status.value for each in found if each.is_current}


def test_a_finding_says_which_shard(current: Pipeline, store: Path) -> None:
    assert {*by_partition(current, "cam", "full_coverage").values()} == {"SUCCEEDED"}
    tamper(current.state(), "cam", "2", one_less)
    whole = results(current, "cam")["full_coverage"]
    assert not whole.passed and value_of(whole, "summary") == "fails in 1 shard"  # type: ignore[arg-type]
    assert "missing: s" in value_of(whole, "shard_2")  # type: ignore[arg-type]
    expected = dict.fromkeys("013", "SUCCEEDED") | {"2": "FAILED", None: "FAILED"}
    assert by_partition(current, "cam", "full_coverage") == expected
    found = current.execute(["cam"], partition_key="1").get_asset_check_evaluations()
    (last,) = [each for each in found if (each.check_name, each.partition) == ("full_coverage", None)]
    assert not last.passed, "shard 2 was not looked at, and still fails"


def failed(pipeline: Pipeline, key: str) -> set[str]:
    """The names of an asset's checks that fail."""
    state = pipeline.state()
    asset = state.asset(key)
    return {name for name in check_names(asset) if not checked(state, asset, name).passed}


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


@pytest.mark.parametrize(
    ("raw", "table", "rejected", "facts"),
    [
        ("abc", "ac", "b", (True, 3, 2, 1, "none", "none")),
        ("ab", "a", "", (False, 2, 1, 0, "b", "none")),
        ("a", "az", "y", (False, 1, 2, 1, "none", "y, z")),
        ("ab", "ab", "b", (False, 2, 2, 1, "none", "none")),
    ],
)
def test_gaps_strangers_and_overlaps_are_named(raw: str, table: str, rejected: str, facts: tuple[object, ...]) -> None:
    found = coverage(ids(*raw), ids(*table), ids(*rejected))
    names = ("samples", "in_table", "rejected", "missing", "unknown")
    assert (found.passed, *(found.metadata[name].value for name in names)) == facts


def test_reserved_documents_that_were_trained_on_are_named() -> None:
    """Check by document: a later question about a reserved text counts as well."""
    split = pl.DataFrame(
        {"sample_id": ["a", "b", "c", "d"], "document": ["1", "1", "2", "3"], "reserved": [True, False, False, True]}
    )
    rows = [("a", "long"), ("b", "long"), ("c", "long"), ("d", "short"), ("e", "long")]
    mix = pl.DataFrame(rows, schema=["sample_id", "origin"], orient="row")
    assert reserved_among(mix, split) == ["a", "b"]
    assert reserved_among(mix.filter(pl.col("sample_id") > "b"), split) == []
