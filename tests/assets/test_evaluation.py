"""A benchmark's asset: what its page shows in place, and what opens with a click."""

from pathlib import Path

import dagster as dg
import pytest

from gateau_dagster import evaluation
from gateau_dagster.evaluation.registry import all_benchmarks
from gateau_dagster.storage import Stamp
from resources.models import ModelsResource
from tests.assets.harness import in_place, pipeline_on
from tests.project import make_project

EXAM = """
import polars as pl

from gateau_dagster.evaluation.benchmark import Benchmark, Comparison, Outcome
from gateau_dagster.evaluation.page import PageAmount, PageChart, PageFigure, PageSection
from gateau_dagster.plotting import new_figure
from gateau_dagster.tables import Column

COLUMNS = (Column(name="model", dtype=pl.String(), description="A model."),)


def section(table):
    chart = PageChart(name="Points (%)", amounts=[PageAmount(name=name, value=5.0) for name in table["model"]])
    figure = PageFigure(name="large", draw=lambda: new_figure("large")[0], alt="", caption="")
    return PageSection(sentences=[], figures=[figure], chart=CHART)


COMPARISON = Comparison(
    columns=COLUMNS,
    reads=lambda config, options: {},
    run=lambda materials, options: Outcome(table=pl.DataFrame({"model": ["base", "checkpoint"]})),
    section=section,
)
NAME = __name__.rpartition(".")[2]
BENCHMARK = Benchmark(name=NAME, title="An exam", description="Of a test.", comparison=COMPARISON)
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
            done = dg.materialize(
                [pipeline.asset(f"evaluation/{name}")],
                resources={"configuration": pipeline.resource, "models": ModelsResource()},
                instance=pipeline.instance,
            )
    finally:
        all_benchmarks.cache_clear()
    (event,) = done.get_asset_materialization_events()
    metadata = event.materialization.metadata
    assert str(metadata["large"].value).startswith("![") and not in_place(metadata["large"])
    assert ("points" in metadata) is has_chart
    assert not has_chart or in_place(metadata["points"])
