"""Asset checks: each passes on what the pipeline made, and fails on a table that was tampered with."""

import io
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import polars as pl
import pytest
from rich.console import Console

from assets.runs.checked import checked
from assets.runs.checks import checks_of
from assets.runs.outcome import failure_of
from assets.runs.refresh import Refreshed
from assets.selection import scored
from gateau_dagster.cli.run import _conclude
from gateau_dagster.data.sample import shard_of
from gateau_dagster.errors import GateauError
from gateau_dagster.pipeline.losses import unseen_shares
from gateau_dagster.pipeline.state import State
from gateau_dagster.progress import silent
from tests.assets.harness import Pipeline, value_of
from tests.project import change_config, sample, write_samples

Tamper = Any


@pytest.fixture
def store(small: Pipeline) -> Iterator[Path]:
    """The store, as it was again afterwards."""
    small.refresh()
    store, copy = small.file.parent / "store", small.file.parent / "copy"
    data = small.file.parent / "long.jsonl"
    before, config = data.read_text(), small.file.read_text()
    shutil.copytree(store, copy)
    yield store
    data.write_text(before)
    small.file.write_text(config)
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


def one_check(pipeline: Pipeline, asset: str, name: str) -> dg.AssetCheckResult:
    """One check without a run around it."""
    state = pipeline.state()
    return checked(state, state.asset(asset), name)


def concluded(pipeline: Pipeline, result: Refreshed, until: str | None = None) -> list[str]:
    """What `gateau run` says in the end."""
    text = io.StringIO()
    _conclude(Console(file=text, width=1000), pipeline.state(), until, True, result, 1.0)
    return text.getvalue().splitlines()


def test_a_run_announces_what_it_was_asked_for(small: Pipeline) -> None:
    """A report that lies there from before is none of it; in the UI's log stand the same notes."""
    result = Refreshed(run_ids=["r"], recorded=2, ended_runs=1, failed_checks=["cam: check finite_values failed"])
    lines = concluded(small, result)
    assert lines[:2] == [
        "Ended 1 earlier run(s) whose process was gone.",
        "Recorded 2 output(s) of the store that Dagster did not know of.",
    ]
    assert "! cam: check finite_values failed" in lines and any(line.startswith("Report: ") for line in lines)
    assert not any(line.startswith("Report: ") for line in concluded(small, result, "perplexity/short"))
    assert result.summary == f"Done by run r. {' '.join(lines[:2])} ! cam: check finite_values failed."


def test_mass_rejection_of_the_input_warns_and_is_said_once(small: Pipeline, store: Path) -> None:
    bad = [sample(number) | {"response": ""} for number in range(100, 130)]
    write_samples(small.file.parent / "long.jsonl", [*(sample(number) for number in range(24)), *bad])
    result = small.refresh(until="raw_long_sft")
    sentence = "30 of 54 records rejected (55.6 %): 30 x empty response"
    assert [line for line in result.failed_checks if line.startswith("raw_long_sft: check rejected_share failed")]
    assert [line for line in concluded(small, result) if sentence in line] == [f"! raw_long_sft: {sentence}"]
    found = one_check(small, "raw_long_sft", "rejected_share")
    assert not found.passed and found.severity is dg.AssetCheckSeverity.WARN
    assert (value_of(found, "summary"), value_of(found, "rejected")) == (sentence, 30)  # type: ignore[arg-type]
    change_config(small.file, long_sft={"max_rejected": 0.5})
    assert one_check(small, "raw_long_sft", "rejected_share").severity is dg.AssetCheckSeverity.ERROR
    job = small.definitions().resolve_job_def("everything").get_subset(asset_selection={dg.AssetKey("raw_long_sft")})
    done = job.execute_in_process(instance=small.instance, raise_on_error=False, partition_key="0")
    assert not done.success and "long_sft.max_rejected: 30 of 54" in str(failure_of(done.all_events))
    change_config(small.file, long_sft={"max_rejected": 0.6})
    assert one_check(small, "raw_long_sft", "rejected_share").passed


def reject_first(state: State, asset: str, shard: str, count: int) -> None:
    """Turns a table's first rows into rejects, each with a number of its own in its reason."""
    table, stamp = state.store.read(asset, shard), state.stamp(asset, shard)
    assert stamp is not None
    ids = table["sample_id"].head(count)
    reasons = [f"out of memory on a prompt of {600 + row} tokens" for row in range(ids.len())]
    rejected = pl.DataFrame({"sample_id": ids, "reason": reasons}, schema_overrides={"reason": pl.String})
    state.store.write(table.slice(count), asset, shard, stamp, rejected)


def test_what_models_could_not_score_warns_with_the_reasons(small: Pipeline, store: Path) -> None:
    state = small.state()
    for shard in state.shards:
        reject_first(state, "cam", shard, 2)
    found = one_check(small, "cam", "rejected_share")
    assert not found.passed and one_check(small, "cam", "full_coverage").passed
    count = 2 * len(state.shards)
    assert value_of(found, "rejected") == count  # type: ignore[arg-type]
    assert value_of(found, "share") == count / 24  # type: ignore[arg-type]
    lines = concluded(small, Refreshed(run_ids=[], recorded=0, ended_runs=0, failed_checks=[]))
    assert any(line.startswith(f"! cam: {count} of 24 samples rejected") for line in lines)
    assert any(line.endswith(f"{count} x out of memory on a prompt of … tokens") for line in lines)


def test_where_nothing_could_be_scored_the_ranking_ends_with_the_reasons(small: Pipeline, store: Path) -> None:
    state = small.state()
    for shard in state.shards:
        reject_first(state, "cam", shard, 24)
    with pytest.raises(GateauError, match=r"cam has no row: 24 of 24 samples rejected \(100 %\): 24 x out of memory"):
        scored(state, silent)


def cut_to(kept: int, cut: int) -> Tamper:
    def change(table: pl.DataFrame) -> pl.DataFrame:
        return table.with_columns(context_tokens=pl.lit(kept, pl.Int32), truncated_tokens=pl.lit(cut, pl.Int32))

    return change


def test_what_is_cut_off_is_counted_by_table(small: Pipeline, store: Path) -> None:
    state = small.state()
    before = state.read("perplexity/short", ["context_tokens", "truncated_tokens"]).sum().row(0)
    for shard in state.shards:
        tamper(state, "perplexity/long", shard, cut_to(25, 75))
    found, passing = (one_check(small, f"perplexity/{model}", "truncated_share") for model in ("long", "short"))
    assert not found.passed and found.severity is dg.AssetCheckSeverity.WARN
    assert passing.passed, "it is to see its window of 64 tokens only"
    assert value_of(passing, "truncated_tokens") == before[1]  # type: ignore[arg-type]
    lines = concluded(small, Refreshed(run_ids=[], recorded=0, ended_runs=0, failed_checks=[]))
    cut = "24 of 24 samples cut, 1,800 of 2,400 context tokens (75 %) lost: scoring.max_length is 512"
    assert f"! perplexity/long: {cut}" in lines
    assert any(line.startswith("perplexity/short: ") for line in lines) == (before[1] > 0)


def test_no_model_saw_what_all_of_them_saw_cut(small: Pipeline, store: Path) -> None:
    state = small.state()
    assets = [state.asset(key) for key in ("perplexity/short", "cam", "perplexity/long")]
    assert unseen_shares(state, assets).is_empty(), "theta_B saw everything"
    tamper(state, "perplexity/long", "0", cut_to(25, 75))
    tamper(state, "perplexity/short", "0", cut_to(0, 100))
    found = unseen_shares(state, assets)
    assert {*found["sample_id"]} == {*state.store.read("perplexity/long", "0")["sample_id"]}
    assert {*found["unseen"]} == {0.75}
    assert unseen_shares(state, assets[:2]).is_empty(), "cam's model saw it too, and this does not say how much of it"
    tamper(state, "perplexity/long", "0", cut_to(0, 0))
    assert unseen_shares(state, assets).is_empty(), "a sample without context loses nothing"


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
    assert f"{table} is damaged" in value_of(found, "shard_1")  # type: ignore[arg-type]


def by_partition(pipeline: Pipeline, asset: str, check: str) -> dict[str | None, str]:
    """What Dagster has on record of each partition, and of the whole."""
    key = dg.AssetCheckKey(dg.AssetKey(asset.split("/")), check)
    found = pipeline.instance.event_log_storage.get_asset_check_partition_info([key])
    return {each.partition_key: each.latest_execution_status.value for each in found if each.is_current}


def test_a_finding_says_which_shard(small: Pipeline, store: Path) -> None:
    assert {*by_partition(small, "cam", "full_coverage").values()} == {"SUCCEEDED"}
    tamper(small.state(), "cam", "2", one_less)
    whole = results(small, "cam")["full_coverage"]
    assert not whole.passed and value_of(whole, "summary") == "fails in 1 shard"  # type: ignore[arg-type]
    assert "missing: s" in value_of(whole, "shard_2")  # type: ignore[arg-type]
    expected = dict.fromkeys("013", "SUCCEEDED") | {"2": "FAILED", None: "FAILED"}
    assert by_partition(small, "cam", "full_coverage") == expected
    job = small.definitions().resolve_job_def("everything").get_subset(asset_selection={dg.AssetKey("cam")})
    done = job.execute_in_process(instance=small.instance, partition_key="1")
    (last,) = [
        each
        for each in done.get_asset_check_evaluations()
        if (each.check_name, each.partition) == ("full_coverage", None)
    ]
    assert not last.passed, "shard 2 was not looked at, and still fails"
