"""Which benchmarks a configuration asks for, with which options; each benchmark's own tests say what it measures."""

from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from gateau_dagster import registry
from gateau_dagster.config import Config
from gateau_dagster.config.base import SectionError
from gateau_dagster.errors import GateauError
from gateau_dagster.features.demo.prepare import embedded_demo
from gateau_dagster.features.evaluation.registry import (
    ENTRY_POINTS,
    all_benchmarks,
    chosen_benchmarks,
    compares,
    configured_benchmarks,
    one_document,
    with_benchmarks,
)
from gateau_dagster.methods.registry import chosen_methods
from gateau_dagster.pipeline.declared import pipeline_of
from gateau_dagster.storage.stamp import fingerprint
from tests.kit.project import ROOT, configured


def _section(config: Config) -> Any:
    return with_benchmarks(config).model_dump(mode="json")["evaluation"]


def test_without_a_word_the_two_of_always_run_with_all_their_options() -> None:
    found = chosen_benchmarks(configured())
    assert list(found) == ["heldout", "needle"]
    for name, chosen in found.items():
        assert chosen.options == all_benchmarks()[name].options_class()()
        settings = chosen.stamped_settings()
        assert settings[f"evaluation.{name}"] == chosen.options.model_dump(mode="json")
        assert {"scoring.max_length", "scoring.template", "scoring.dtype"} <= {*settings}


@pytest.mark.parametrize("sections", [{"training": {"enabled": False}}, {"evaluation": {"enabled": False}}])
def test_what_does_not_run_is_still_known_and_still_checked(sections: dict[str, Any]) -> None:
    assert chosen_benchmarks(configured(**sections)) == {}
    assert list(configured_benchmarks(configured(**sections))) == ["heldout", "needle"]
    wrong = {**sections, "evaluation": {**sections.get("evaluation", {}), "benchmarks": ["x"]}}
    with pytest.raises(SectionError, match=r"evaluation\.benchmarks\.0"):
        chosen_benchmarks(configured(**wrong))


def test_the_order_is_not_that_of_the_configuration_and_a_name_counts_once() -> None:
    named = configured(evaluation={"benchmarks": ["needle", "heldout", "needle"]})
    assert list(chosen_benchmarks(named)) == ["heldout", "needle"]


@pytest.mark.parametrize(
    ("evaluation", "digest"),
    [
        (None, "8c28ce95da699c7211c5014f6c0d1df3"),
        ({}, "8fef6609165d3915168dc2be105346cf"),
        (
            {"benchmarks": ["needle"], "needle": {"lengths": [64]}, "heldout": {"samples": 5}},
            "8a97edbbb545b042339bbd38c3492a9e",
        ),
        ({"enabled": False}, "50ae7ceaf7c6ba72a8b347f5c63d0807"),
    ],
)
def test_the_section_in_a_report_s_fingerprint_stays_what_it_was(
    evaluation: dict[str, Any] | None, digest: str, tmp_path: Any
) -> None:
    """Compare with pages of the demo and of small files from before benchmarks had own files: none is rebuilt."""
    config = embedded_demo(tmp_path) if evaluation is None else configured(evaluation=evaluation)
    assert fingerprint(_section(config)) == digest


def test_a_filled_configuration_says_the_same() -> None:
    given = configured(evaluation={"needle": {"lengths": [64]}})
    filled = with_benchmarks(given)
    assert list(_section(given)) == ["enabled", "benchmarks", "heldout", "needle"]
    options = [[each.options for each in chosen_benchmarks(config).values()] for config in (given, filled)]
    assert options[0] == options[1] and with_benchmarks(filled) == filled


def test_a_filled_configuration_keeps_what_is_no_benchmark_s() -> None:
    given = {"gate": {"benchmark": "needle", "margin": 1.0}, "reference": "checkpoint"}
    filled = _section(configured(evaluation=given))
    assert filled["reference"] == "checkpoint" and filled["gate"] == {**given["gate"], "variant": None}


def test_every_column_says_what_it_holds_and_what_is_finite_is_a_number() -> None:
    for benchmark in chosen_benchmarks(configured()).values():
        assert compares(benchmark) and all(column.description.endswith(".") for column in benchmark.columns)
        types = {column.name: column.dtype for column in benchmark.columns}
        assert benchmark.finite and all(types[name] == pl.Float64() for name in benchmark.finite)


@pytest.mark.parametrize("name", all_benchmarks())
def test_a_benchmark_is_named_in_its_own_files_and_in_examples_alone(name: str) -> None:
    files = [file for package in ("gateau_dagster", "assets", "resources") for file in (ROOT / package).rglob("*")]
    code = [file for file in files if file.suffix in {".py", ".j2"}]
    # In code "LongPPL" in a docstring is the paper and no benchmark; in a page any spelling is the benchmark's.
    texts = {file: file.read_text(encoding="utf-8") for file in code}
    spelt = {file: text.lower() if file.suffix == ".j2" else text for file, text in texts.items()}
    naming = {file.relative_to(ROOT).parts for file, text in spelt.items() if name in text}
    naming = {parts[2] if parts[1] == "features" else parts[1] for parts in naming}
    assert naming <= {"evaluation", "demo", "cli"}  # `gateau init` writes one into its example


def test_one_document_is_refused_with_the_section_that_decides_what_is_one() -> None:
    error = one_document(configured(), 3)
    assert error.code == "evaluation.heldout"
    assert "3 samples" in str(error) and "evaluation.heldout.similarity" in str(error)


PLUGIN = """
from gateau_dagster.config.base import Section
from gateau_dagster.features.evaluation.benchmark import Measured, MeasuredBenchmark


class Own(MeasuredBenchmark):
    name = "own"
    title = "Own"
    description = "Of a file outside the package."
    options: Section
    unit = "%"

    def measure(self, materials, variant):
        return Measured.of([])
"""


def test_a_file_of_one_s_own_holds_a_benchmark_whose_version_follows_it(tmp_path: Path) -> None:
    def versions(content: str) -> tuple[str, str]:
        (tmp_path / "own.py").write_text(content)
        given = {"selection": {"plugins": ["own.py"]}, "evaluation": {"benchmarks": ["own", "needle"]}}
        config = configured(**given).model_copy(update={"folder": tmp_path})
        assert list(chosen_methods(config)) == ["gateau"], "it need not hold a method"
        by_key = pipeline_of(config).by_key
        return by_key["scores/own"].code_version, by_key["evaluation/needle"].code_version

    first, second = versions(PLUGIN), versions(PLUGIN + "# edited")
    assert first[0] != second[0] and first[1] == second[1] == "2"
    with pytest.raises(GateauError, match=r"own\.py: class Own lacks unit"):
        versions(PLUGIN.replace('    unit = "%"\n', ""))


def test_an_installed_package_names_a_benchmark(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = EntryPoint("quiz", "tests.features.evaluation.benchmarks_in_test.quiz:Quiz", ENTRY_POINTS)
    monkeypatch.setattr(registry, "entry_points", lambda group: [entry] if group == ENTRY_POINTS else [])
    all_benchmarks.cache_clear()
    try:
        assert "quiz" in chosen_benchmarks(configured(evaluation={"benchmarks": ["quiz"]}))
    finally:
        all_benchmarks.cache_clear()
