"""Further segment lengths through the pipeline: their own tables, what is compared, and what stays as it is."""

from pathlib import Path
from typing import Any

import pytest
from polars.testing import assert_frame_equal

from gateau_dagster.comparison.result import MethodComparison
from tests.assets.harness import Pipeline, pipeline_on
from tests.kit.project import make_project

SHARDS = ["0", "1"]
OWN = {"sample_id", "digest", "segments", "far_gain"}


def ran(pipeline: Pipeline, **sections: Any) -> set[str]:
    """What ran after a change of the configuration."""
    return {asset for asset, _ in pipeline.made(**sections)}


def sweep(pipeline: Pipeline) -> Any:
    return MethodComparison.from_json(pipeline.state().store.files.read("comparison.json")).segment_length


@pytest.mark.long
def test_a_length_computes_its_own_table_and_is_compared(tmp_path: Path) -> None:
    file = make_project(tmp_path, samples=10, shards=len(SHARDS), selection={"fraction": 0.3})
    with pipeline_on(file) as pipeline:
        pipeline.refresh()
        plain = pipeline.state().store.files.read("report.html").decode()
        assert "What if segments" not in plain

        compared = {"method_scores/gateau", "comparison", "report"}
        assert ran(pipeline, selection={"segment_lengths": [32]}) == {"cam_at/32", *compared}
        store = pipeline.state().store
        assert {*store.read("cam_at/32", "0").columns} == OWN
        found = sweep(pipeline)
        assert (found.configured, found.samples, found.chosen) == (16, 10, 3)
        assert [point.value for point in found.points] == [16, 32]
        assert found.points[0].spearman == pytest.approx(1.0) and found.points[0].overlap == 1.0
        assert "What if segments had another length?" in store.files.read("report.html").decode()

        # One more, and one that is there as `cam`.
        assert ran(pipeline, selection={"segment_lengths": [24, 16, 32]}) == {"cam_at/24", "comparison", "report"}
        assert [point.value for point in sweep(pipeline).points] == [16, 24, 32]
        further = store.read_all("cam_at/24", SHARDS).sort("sample_id")

        # The same as `cam` of a run that is configured so; `cam_at/24` is not made again for it.
        again = ran(pipeline, scoring={"segment_length": 24}, selection={"segment_lengths": [16, 32]})
        assert {"cam", "cam_at/16", "comparison", "report"} <= again and not {"cam_at/32", "cam_at/24"} & again
        configured = store.read_all("cam", SHARDS, further.columns).sort("sample_id")
        assert_frame_equal(configured, further, rel_tol=1e-4, abs_tol=1e-6)
        assert configured["far_gain"].drop_nulls().len() > 0
