"""The pages show rows, places, charts, rejects and efforts; some steps of a training are shown."""

import re
from itertools import pairwise
from typing import Any

import dagster as dg
import polars as pl
import pytest

from gateau_dagster.assets import trained_model
from gateau_dagster.assets.steps.metadata import (
    effort_metadata,
    figures_metadata,
    first_histogram,
    name_of,
    page_metadata,
    preview,
    rounded,
    statistics,
    table_metadata,
)
from gateau_dagster.plotting import new_figure
from gateau_dagster.storage import Stamp
from gateau_dagster.tables import CONVERSATION
from tests.assets.harness import Pipeline, in_place
from tests.assets.harness import name_of as asset_of

STAMP = Stamp(fingerprint="f", inputs={}, rows=7)


@pytest.fixture(scope="module")
def latest(small: Pipeline) -> dict[str, dg.AssetMaterialization]:
    """The last record of every asset."""
    return {asset.key: small.latest(asset.key) for asset in small.state().pipeline.assets}


def test_keys_are_names_and_rows_those_of_the_whole_only_where_they_are(
    small: Pipeline, latest: dict[str, dg.AssetMaterialization]
) -> None:
    for asset in small.state().pipeline.assets:
        names = latest[asset.key].metadata
        assert not [name for name in names if not re.fullmatch(r"[a-z0-9_]+(/[a-z0-9_]+)?", name)], asset.key
        assert "dagster/row_count" not in names or not asset.partitions, asset.key
        assert "dagster/partition_row_count" not in names or asset.partitions, asset.key
    assert "dagster/row_count" in latest["selected_subset"].metadata
    assert "dagster/partition_row_count" in latest["cam"].metadata


def test_every_column_of_every_table_is_described(small: Pipeline) -> None:
    state, specs = small.state(), {asset_of(spec.key): spec for spec in small.definitions().resolve_all_asset_specs()}
    for asset in state.pipeline.assets:
        if asset.columns:
            shown = specs[asset.key].metadata["dagster/column_schema"].columns
            stored = state.store.read(asset.key, state.pipeline.partitions(asset.key)[0]).columns
            absent = {CONVERSATION.name}.difference(stored)  # no sample here has one
            assert [column.name for column in shown if column.name not in absent] == stored, asset.key
            assert all(column.description for column in shown), asset.key


def test_the_selection_shows_rows_path_scores_with_the_cut_and_sources(
    small: Pipeline, latest: dict[str, dg.AssetMaterialization]
) -> None:
    metadata, subset = latest["selected_subset"].metadata, small.state().store.read("selected_subset")
    records = metadata["first_rows"].value.records  # type: ignore[union-attr]
    assert [record.data["rank"] for record in records] == subset["rank"].head(10).to_list()
    assert [record.data["sample_id"] for record in records] == subset["sample_id"].head(10).to_list()
    assert str(metadata["path"].value).endswith("store/selected_subset.parquet")
    assert metadata["lowest_selected_score"].value == rounded(subset["score"].min())
    assert in_place(metadata["scores"]) and "lowest selected" in metadata["scores"].value  # type: ignore[operator]
    assert in_place(metadata["sources"])


def test_the_input_s_fields_are_shown_with_their_use(latest: dict[str, dg.AssetMaterialization]) -> None:
    records = latest["raw_long_sft"].metadata["input_fields"].value.records  # type: ignore[union-attr]
    found = {record.data["field"]: record.data for record in records}
    assert {"context", "instruction", "response", "id"} <= {*found}
    assert found["context"]["used"] == found["id"]["used"] > 0 == found["context"]["rejected"]


@pytest.mark.parametrize("asset", ["raw_long_sft", "perplexity/short", "cam", "combined_scores", "selected_subset"])
def test_tables_have_a_chart_in_place_and_their_first_rows_last(
    asset: str, latest: dict[str, dg.AssetMaterialization]
) -> None:
    metadata = latest[asset].metadata
    assert any(in_place(value) for value in metadata.values())
    assert list(metadata)[-1] == "first_rows"


def test_a_preview_cuts_long_texts_and_counts_lists() -> None:
    table = pl.DataFrame(
        {"text": ["a\nb" * 100, "c"], "digest": ["x", "y"], "list": [[1, 2], []], "none": [None, None], "f": [1 / 3, 2]}
    )
    shown = preview(table, rows=1)["first_rows"]
    (record,) = shown.records
    assert set(record.data) == {"text", "list", "none", "f"}
    assert record.data["list"] == "[2 values]" and record.data["none"] is None and record.data["f"] == 0.333
    assert record.data["text"].endswith(" …") and "\n" not in record.data["text"] and len(record.data["text"]) < 70
    assert preview(table.clear()) == {}
    odd = preview(pl.DataFrame({"f": [float("nan"), float("inf")]}))["first_rows"]
    assert [record.data["f"] for record in odd.records] == ["nan", "inf"]


def test_the_score_is_what_a_histogram_is_of() -> None:
    table = pl.DataFrame({"id": ["a"], "hmp": [0.5], "score": [None]}, schema_overrides={"score": pl.Float64})
    assert list(first_histogram(table)) == ["score_histogram"]
    assert list(first_histogram(table.drop("score"))) == ["hmp_histogram"]
    assert first_histogram(table.select("id")) == first_histogram(table.clear()) == {}
    table = pl.DataFrame({"sample_id": ["a", "b"], "cas": [0.5, None], "lists": [[1.0], [2.0]]})
    assert statistics(table) == {"mean_cas": 0.5} and statistics(table.clear()) == {}


def test_plots_go_by_names() -> None:
    figure, _ = new_figure("title", width=2, height=1)
    assert list(figures_metadata({"experiment/quiz: values": figure})) == ["experiment_quiz_values"]
    assert name_of("Needle in a haystack") == "needle_in_a_haystack"


def test_rejects_are_rows_whose_texts_are_no_markup() -> None:
    reason = "![x](https://example.org/seen.png) <b>|</b>\nno response"
    rejected = pl.DataFrame({"sample_id": [f"s{number}" for number in range(30)], "reason": reason})
    assert "path" not in table_metadata("s3://bucket/store/cam/0.parquet", STAMP, whole=False)
    metadata = table_metadata("/store/cam/0.parquet", STAMP, rejected, whole=False)
    assert metadata["rejected"] == 30 and metadata["dagster/partition_row_count"] == 7
    shown = metadata["rejected_samples"]
    assert isinstance(shown, dg.TableMetadataValue) and len(shown.records) == 20
    assert shown.records[0].data == {"sample_id": "s0", "reason": reason.replace("\n", " ")}
    assert "rejected_samples" not in table_metadata("/store/cam/0.parquet", STAMP, rejected.clear())


def test_rows_come_last_and_measured_values_have_three_digits() -> None:
    assert list(page_metadata({"first_rows": 1, "b": 2})) == ["b", "first_rows"]
    shown = page_metadata({"tokens": 123_456, "loss": 1.23456, "seconds": 4321.5, "name": "a"})
    assert shown == {"tokens": 123_456, "loss": 1.23, "seconds": 4320.0, "name": "a"}


def test_the_report_sums_up_all_tables(small: Pipeline, latest: dict[str, dg.AssetMaterialization]) -> None:
    rows = {record.data["table"]: record.data for record in latest["report"].metadata["totals"].value.records}  # type: ignore[union-attr]
    state = small.state()
    assert rows["cam"]["rows"] == state.read("cam", ["sample_id"]).height
    assert rows["cam"]["hours"] is not None and rows["cam"]["tokens"] > 0  # type: ignore[operator]
    assert rows["selected_subset"]["tokens"] is None


EFFORT: dict[str, Any] = {
    "samples": 4,
    "tokens": 1000,
    "flops": 6e9,
    "seconds": 2.0,
    "peak_memory": 3 * 2**20,
    "peak_memory_since_start": False,
    "device": "cuda:1",
    "matrix_product_speed": 1e10,
}


def test_rates_and_the_share_of_the_peak() -> None:
    found = effort_metadata(EFFORT)
    assert found == {
        "scoring_seconds": 2.0,
        "tokens_scored": 1000,
        "flops": 6e9,
        "peak_gpu_memory_mib": 3.0,
        "device": "cuda:1",
        "samples_per_second": 2.0,
        "tokens_per_second": 500.0,
        "flops_per_second": 3e9,
        "share_of_matrix_product_peak": pytest.approx(0.3),
    }


def test_what_is_unknown_is_left_out() -> None:
    unknown = {**EFFORT, "seconds": 0.0}
    assert set(effort_metadata(unknown)) == {
        "scoring_seconds", "tokens_scored", "flops", "peak_gpu_memory_mib", "device"
    }  # fmt: skip
    assert "share_of_matrix_product_peak" not in effort_metadata({**EFFORT, "matrix_product_speed": None})
    assert effort_metadata({}) == {}, "all rows were kept"


@pytest.mark.parametrize(
    ("since_start", "name"), [(False, "peak_process_memory_mib"), (True, "peak_process_memory_since_start_mib")]
)
def test_memory_is_named_for_what_it_is(since_start: bool, name: str) -> None:
    assert effort_metadata({**EFFORT, "device": "cpu", "peak_memory_since_start": since_start})[name] == 3.0


def test_some_steps_are_spread_over_the_training_and_hold_both_ends() -> None:
    log: list[dict[str, Any]] = [{"step": step, "loss": 1 / step, "extra": 0} for step in range(1, 101)]
    shown = trained_model._some(log)
    assert len(shown) == 20
    assert (shown[0]["step"], shown[-1]["step"]) == (1, 100)
    assert {later["step"] - step["step"] for step, later in pairwise(shown)} == {5, 6}
    assert all(set(row) == set(trained_model._COLUMNS) for row in shown)
    assert [(row["step"], row["loss"]) for row in trained_model._some(log[:3])] == [(1, 1.0), (2, 0.5), (3, 0.333)]
