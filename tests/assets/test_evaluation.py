"""A benchmark's asset: what its page shows in place, and what opens with a click."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gateau_dagster import evaluation
from gateau_dagster.assets.benchmarks import measured_models
from gateau_dagster.config.base import Section
from gateau_dagster.evaluation.benchmark import Materials, Measured
from gateau_dagster.evaluation.registry import all_benchmarks
from gateau_dagster.storage import Stamp
from tests.assets.harness import in_place, pipeline_on
from tests.evaluation.experiment_builders import Unmeasured
from tests.evaluation.mt_bench_files import NO_MATERIALS
from tests.project import make_project

EXAM = """
import polars as pl

from gateau_dagster.config.base import Section
from gateau_dagster.evaluation.benchmark import Measured, MeasuredBenchmark
from gateau_dagster.evaluation.benchmark import PageAmount, PageChart, PageFigure, PageSection
from gateau_dagster.plotting import new_figure
from gateau_dagster.tables import Column

COLUMNS = (Column(name="model", dtype=pl.String(), description="A model."),)


class Exam(MeasuredBenchmark):
    name = __name__.rpartition(".")[2]
    title = "An exam"
    description = "Of a test."
    unit = "%"
    options: Section
    columns = COLUMNS

    def measure(self, materials, variant):
        return Measured(table=pl.DataFrame({"model": [variant]}))

    def compare(self, measured):
        return Measured(table=pl.concat(each.table for each in measured.values()))

    def section(self, table):
        chart = PageChart(name="Points (%)", amounts=[PageAmount(name=name, value=5.0) for name in table["model"]])
        figure = PageFigure(name="large", draw=lambda: new_figure("large")[0], alt="", caption="")
        return PageSection(sentences=[], figures=[figure], chart=CHART)
"""


@pytest.mark.parametrize("has_chart", [True, False])
def test_its_chart_stands_in_place_and_its_figures_do_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_chart: bool
) -> None:
    (tmp_path / "benchmarks").mkdir()
    name = f"exam_{has_chart}".lower()  # a module's name is taken once in a process
    (tmp_path / "benchmarks" / f"{name}.py").write_text(EXAM.replace("CHART)", "chart)" if has_chart else "None)"))
    monkeypatch.setattr(evaluation, "__path__", [*evaluation.__path__, str(tmp_path / "benchmarks")])
    all_benchmarks.cache_clear()
    try:
        file = make_project(tmp_path / "project", samples=4, shards=1, training=True, evaluation={"benchmarks": [name]})
        with pipeline_on(file) as pipeline:
            checkpoint = Stamp(fingerprint="f", content="c").to_json()
            pipeline.state().store.files.write("checkpoint/gateau.json", checkpoint.encode())
            done = pipeline.make(f"evaluation/{name}")
    finally:
        all_benchmarks.cache_clear()
    (event,) = done.get_asset_materialization_events()
    metadata = event.materialization.metadata
    assert str(metadata["large"].value).startswith("![") and not in_place(metadata["large"])
    assert ("points" in metadata) is has_chart
    assert not has_chart or in_place(metadata["points"])


def test_progress_is_that_over_both_models() -> None:
    class Counted(Unmeasured):
        def measure(self, materials: Materials, variant: str) -> Measured:
            for done in (1, 2):
                materials.progress(done, 2, "samples", variant)
            return Measured.of([])

    seen: list[tuple[Any, ...]] = []
    given = replace(NO_MATERIALS, progress=lambda done, total, unit, note="": seen.append((done, total, unit, note)))
    assert [*measured_models(Counted(given.config, Section()), given)] == ["base", "checkpoint"]
    expected = [(1, "base"), (2, "base"), (3, "checkpoint"), (4, "checkpoint")]
    assert seen == [(done, 4, "samples", name) for done, name in expected]
