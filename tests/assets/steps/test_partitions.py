"""Test that Dagster keeps only figures of a table with very many partitions, and that the table is the same."""

import dagster as dg
import pytest

from gateau_dagster.assets.runs.checks import checked, is_partitioned
from gateau_dagster.assets.steps import partitions, step
from gateau_dagster.assets.steps.partitions import figures_only, has_many
from gateau_dagster.data.sample import shard_of
from tests.assets.harness import Pipeline, forget_definitions, versions_on_record
from tests.assets.runs.tampering import one_less, tamper
from tests.kit.project import sample, write_samples

PLANNED = dg.DagsterEventType.ASSET_MATERIALIZATION_PLANNED
MADE = dg.DagsterEventType.ASSET_MATERIALIZATION
CHECKED = dg.DagsterEventType.ASSET_CHECK_EVALUATION
PARTITIONED = ("raw_long_sft", "perplexity/short", "perplexity/long", "cam")


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three shards are many."""
    monkeypatch.setattr(partitions, "FEW", 2)
    forget_definitions()


def records(pipeline: Pipeline, kind: dg.DagsterEventType) -> list[dg.DagsterEvent]:
    run = max(pipeline.runs(), key=lambda each: pipeline.instance.get_run_record_by_id(each.run_id).create_timestamp)  # type: ignore[union-attr]
    return [each.get_dagster_event() for each in pipeline.instance.all_logs(run.run_id, of_type=kind)]


def assert_all_on_record(pipeline: Pipeline) -> None:
    """Each partition, with the data version of the store."""
    state = pipeline.state()
    assert not state.plan()
    for asset in PARTITIONED:
        stamps = {shard: pipeline.stamp(asset, shard).fingerprint for shard in state.shards}
        assert len(stamps) == 3
        assert versions_on_record(pipeline.instance, state, asset) == stamps, asset


@pytest.mark.usefixtures("few")
def test_a_run_records_figures_and_makes_the_same(fresh: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step, "first_histogram", lambda _: pytest.fail("nobody sees it"))
    assert all(has_many(fresh.state().pipeline, asset) for asset in PARTITIONED)
    assert not has_many(fresh.state().pipeline, "combined_scores")
    fresh.refresh()
    assert_all_on_record(fresh)
    assert {event.partition for event in records(fresh, PLANNED)} == {None}, "one an asset"
    for event in records(fresh, MADE):
        if event.partition is not None:
            found = event.step_materialization_data.materialization
            assert not {"first_rows", "path", "fingerprint", "sources", "perplexity_histogram"} & {*found.metadata}
            assert {"dagster/uri", "dagster/partition_row_count", "rejected"} <= {*found.metadata}
    checks = [event.asset_check_evaluation_data for event in records(fresh, CHECKED)]
    assert all(each.partition is None for each in checks)
    coverage = {each.asset_key.to_user_string(): each for each in checks if each.check_name == "full_coverage"}
    assert all(each.passed for each in coverage.values())
    for asset in ("perplexity/short", "perplexity/long", "cam"):
        assert coverage[asset].metadata["looked_at"].value == "3 shards"


@pytest.mark.usefixtures("few")
def test_only_what_changed_is_recorded_again_and_a_lost_sample_fails_the_check(fresh: Pipeline) -> None:
    fresh.refresh()
    texts = [sample(number) for number in range(12)]
    write_samples(fresh.file.parent / "long.jsonl", texts)
    fresh.refresh()
    texts[3]["response"] = "another answer ."
    write_samples(fresh.file.parent / "long.jsonl", texts)
    fresh.refresh()
    assert_all_on_record(fresh)
    again = [event for event in records(fresh, MADE) if event.partition is not None]
    assert {event.partition for event in again} == {f"{shard_of('s00003', 3)}"}
    assert len(again) == len(PARTITIONED)

    state = fresh.state()
    cam = state.asset("cam")
    assert not is_partitioned(state.pipeline, cam, "full_coverage")
    tamper(state, "cam", "2", one_less)
    assert not checked(state, cam, "full_coverage", "2").passed


def test_rejected_samples_stay_with_the_figures() -> None:
    rows = dg.MetadataValue.table([dg.TableRecord({"sample_id": "a"})])
    kept = {"rejected_samples": rows, "n": 1}
    left_out = {"first_rows": rows, "chart": dg.MarkdownMetadataValue("!"), "path": "p"}
    assert figures_only({**kept, **left_out}) == kept
