"""The benchmark that CONTRIBUTING.md shows is one: found by the registry, planned, run, and shown in the report."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from gateau_dagster.assets.runs.checks import check_names
from gateau_dagster.assets.steps.definition import asset_definitions
from gateau_dagster.config import Config
from gateau_dagster.errors import GateauError
from gateau_dagster.features.evaluation import benchmarks
from gateau_dagster.features.evaluation.benchmark import MODELS, Materials
from gateau_dagster.features.evaluation.config import evaluation_of
from gateau_dagster.features.evaluation.registry import all_benchmarks, chosen_benchmarks, with_benchmarks
from gateau_dagster.pipeline.asset import FINITE_VALUES, Observed
from gateau_dagster.pipeline.declared import pipeline_of
from gateau_dagster.pipeline.project import parse_project
from tests.assets.harness import asset_key
from tests.features.evaluation.builders import loaded, sample, slow_nll
from tests.features.report.builders import inputs, page_of
from tests.kit.contributing import block
from tests.kit.project import configured

SAMPLES = {one.sample_id: one for one in (sample(i, context=20) for i in range(3))}
ASKED = {"benchmarks": ["heldout", "closed_book"], "closed_book": {"samples": 2}}


@pytest.fixture(autouse=True)
def _among_the_benchmarks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The example as a file beside the others."""
    (tmp_path / "closed_book.py").write_text(block("Adding a benchmark"))
    monkeypatch.setattr(benchmarks, "__path__", [*benchmarks.__path__, str(tmp_path)])
    all_benchmarks.cache_clear()
    yield
    all_benchmarks.cache_clear()


def _table(config: Config) -> pl.DataFrame:
    def shards(asset: str, columns: object) -> Iterator[pl.DataFrame]:
        assert (asset, columns) == ("raw_long_sft", ["sample_id"])
        yield pl.DataFrame({"sample_id": list(SAMPLES)[::-1]})

    materials = Materials(
        config=config,
        reads={"raw_long_sft"},
        shards=shards,
        samples=lambda ids: [SAMPLES[name] for name in ids],
        model={"base": loaded(0), "checkpoint": loaded(1)}.__getitem__,
    )
    benchmark: Any = chosen_benchmarks(config)["closed_book"]
    return benchmark.compare({name: benchmark.measure(materials, name) for name in MODELS}).table


def test_the_example_against_a_slow_twin() -> None:
    table = _table(configured(evaluation=ASKED, scoring={"dtype": "float32"}))
    first = list(SAMPLES.values())[:2]
    for name, model in (("base", loaded(0)), ("checkpoint", loaded(1))):
        expected = sum(slow_nll(model, replace(one, context="")) for one in first) / 2
        assert table.filter(model=name)["mean_nll"].item() == pytest.approx(expected, rel=1e-5)


def test_it_runs_when_it_is_named_and_changes_nothing_otherwise() -> None:
    assert list(chosen_benchmarks(configured())) == ["heldout", "needle"]
    assert "closed_book" not in evaluation_of(with_benchmarks(configured())).sections
    assert list(chosen_benchmarks(configured(evaluation=ASKED))) == ["closed_book", "heldout"]


def test_it_is_planned_made_and_checked() -> None:
    config = configured(evaluation=ASKED)
    asset = pipeline_of(config).by_key["evaluation/closed_book"]
    assert asset.reads == {"raw_long_sft": "fingerprint", "checkpoint": "content"}
    assert asset.resolved(Observed(model_digests={})).settings["evaluation.closed_book"] == {"samples": 2}
    assert asset_key("evaluation/closed_book") in {key for made in asset_definitions(config) for key in made.keys}
    assert FINITE_VALUES in check_names(asset)


@pytest.mark.parametrize(
    ("section", "mistake"),
    [
        ("closed_book: {samples: 0}", "4: evaluation.closed_book.samples: should be greater than or equal to 1"),
        ("closed_book: {sample: 1}", "4: evaluation.closed_book.sample: unknown key; did you mean samples?"),
        ("benchmarks: [closed]", "4: evaluation.benchmarks.0: should be 'closed_book', "),
    ],
)
def test_its_options_are_validated_in_the_file(section: str, mistake: str) -> None:
    text = f"long_sft: {{path: a}}\nmodels: {{short: {{path: s}}, long: {{path: l}}}}\nevaluation:\n  {section}"
    with pytest.raises(GateauError) as failure:
        parse_project(text, folder=Path())
    assert f"gateau.yaml:{mistake}" in str(failure.value)


def test_the_report_has_its_section() -> None:
    table = pl.DataFrame({"model": ["base", "checkpoint"], "mean_nll": [2.0, 1.5]})
    given = inputs(config=configured(evaluation=ASKED), evaluations={"closed_book": table})
    text = page_of(given).text("evaluation")
    assert "Closed book NLL of a response without its context: base 2.00, checkpoint 1.50." in text
    assert "base2.000" in text and "checkpoint1.500" in text
