"""Raising a code version makes again what that code makes, and what reads it, once; of every asset there is."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from gateau_dagster.config import Config
from gateau_dagster.data import index
from gateau_dagster.data.index import read_shards
from gateau_dagster.data.sample import Sample
from gateau_dagster.features.evaluation.config import EvaluationConfig
from gateau_dagster.features.evaluation.judged import RatedBenchmark
from gateau_dagster.features.evaluation.registry import all_benchmarks
from gateau_dagster.features.evaluation.servers import JudgeConfig
from gateau_dagster.methods.registry import all_methods, all_sample_tables
from gateau_dagster.pipeline import declarations
from gateau_dagster.pipeline.asset import Asset
from gateau_dagster.pipeline.declared import partition_sets, pipeline_of
from gateau_dagster.pipeline.observed import state_of
from gateau_dagster.pipeline.plan import AFTER
from gateau_dagster.pipeline.project import load_project
from tests.features.whole import of_features
from tests.kit.project import make_project
from tests.pipeline.by_method import BENCHMARKS, by_method, maximal
from tests.pipeline.code_versions import RAISED, constants, raise_version
from tests.pipeline.configured import resolved_assets
from tests.pipeline.world import World

# What each constant is the version of: assets, or the first part of their names.
CONSTANTS: dict[str, set[str]] = {
    "data.input_index.CODE_VERSION": {"raw_long_sft"},
    "data.short_chat.CODE_VERSION": {"short_chat_mix"},
    "data.document_split.CODE_VERSION": {"document_split"},
    "training.training_mix.CODE_VERSION": {"training_mix", "pre_experience_mix", "variant/training_mix"},
    "training.launch.CODE_VERSION": {"checkpoint", "pre_experienced", "homologous_model", "variant/checkpoint"},
    "scoring.pair_tables.PERPLEXITY_CODE_VERSION": {"perplexity"},
    "scoring.pair_tables.CAM_CODE_VERSION": {"cam", "cam_at"},
    "scoring.segments.GAINS_CODE_VERSION": {"cam"},
    "scoring.segments.SCREENING_CODE_VERSION": set(),  # of screened segments: see below
    "selection.combine.CODE_VERSION": {"combined_scores"},
    "selection.evidence.CODE_VERSION": {"evidence"},
    "selection.evidence.SUMS_CODE_VERSION": {"evidence"},
    "selection.forecast.CODE_VERSION": set(),  # of rule auto: see below
    "selection.trim.CODE_VERSION": set(),  # of training.trim: see below
    "methods.registry.CODE_VERSION": {"method_scores"},
    "selection.rules.CODE_VERSION": {"selected_subset", "variant/selected_subset"},
    "comparison.compare.CODE_VERSION": {"comparison"},
    **{constant: made for each in of_features("CODE_VERSIONS").values() for constant, made in each.items()},
}
OF_ANSWERS = "features.evaluation.generation.answering.CODE_VERSION"  # see tests/features/evaluation
# Tables of methods and rules say their version where they are declared.
OF_TABLES = ("quality/reward", "segment_pairs/long", "response_alone/cherry", "span_attention/long", "embedding/enc",
             "instruction_embedding/long", "long_attention/long")  # fmt: skip


@cache
def of_maximal() -> Mapping[str, Asset]:
    """Return the assets of the maximal configuration, before a test raises a version."""
    return resolved_assets(maximal())


def assets_of(names: set[str]) -> set[str]:
    return {asset.key for asset in pipeline_of(maximal()).assets if {asset.key, asset.family} & names}


def test_every_asset_and_every_constant_has_a_line_here() -> None:
    assert constants() == {f"gateau_dagster.{constant}" for constant in (*CONSTANTS, OF_ANSWERS)}
    by_constant = [assets_of(names) for names in CONSTANTS.values()]
    benchmarks = set[str]().union(*map(of_benchmark, all_benchmarks()))
    assert benchmarks.union(OF_TABLES, *by_constant) == {asset.key for asset in pipeline_of(maximal()).assets}


@pytest.mark.parametrize("constant", [each for each, names in CONSTANTS.items() if names])
def test_a_constant(constant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    before = of_maximal()
    raise_version(monkeypatch, f"gateau_dagster.{constant}")
    check_made_again_once(before, assets_of(CONSTANTS[constant]))


def test_the_choice_of_screened_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    config = by_method("gateau", "far_gain", segment_lengths=[64], scoring={"segments": "screened"})
    before = resolved_assets(config)
    raise_version(monkeypatch, "gateau_dagster.scoring.segments.SCREENING_CODE_VERSION")
    check_made_again_once(before, {"cam", "cam_at/64"}, config)


@pytest.mark.parametrize(("constant", "asset"), [("trim", "training_mix"), ("forecast", "selected_subset")])
def test_the_cut_of_contexts_and_the_verdict_of_auto(
    constant: str, asset: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = by_method("gateau", training=True, rule="auto")
    config = config.model_copy(update={"training": config.training.model_copy(update={"trim": True})})
    before = resolved_assets(config)
    raise_version(monkeypatch, f"gateau_dagster.selection.{constant}.CODE_VERSION")
    after = resolved_assets(config)
    # It is a part of the settings, since without the key nothing depends on it.
    assert {key for key in before if after[key].settings != before[key].settings} == {asset}


@pytest.mark.parametrize("table", OF_TABLES)
def test_a_table_of_a_method(table: str, monkeypatch: pytest.MonkeyPatch) -> None:
    before = of_maximal()
    tables = all_sample_tables(maximal())
    tables[table] = replace(tables[table], code_version=RAISED)
    monkeypatch.setattr(declarations, "all_sample_tables", lambda _: tables)
    check_made_again_once(before, {table})


@pytest.mark.parametrize("name", all_methods())
def test_a_method(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    before = of_maximal()
    monkeypatch.setattr(all_methods()[name], "code_version", RAISED)
    check_made_again_once(before, {f"method_scores/{name}"})


@pytest.mark.parametrize("name", BENCHMARKS)
def test_a_benchmark(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    before = of_maximal()
    monkeypatch.setattr(all_benchmarks()[name], "code_version", RAISED)
    check_made_again_once(before, of_benchmark(name))


@pytest.mark.parametrize("name", [name for name in all_benchmarks() if name not in BENCHMARKS])
def test_a_benchmark_that_needs_files(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whose files are not looked for here."""
    benchmark = all_benchmarks()[name]
    monkeypatch.setattr(benchmark, "check", lambda _: None)
    monkeypatch.setattr(benchmark, "settings", lambda _: {})
    config = by_method("length", training=True, variants={"fractions": [0.5], "also": ["full"]})
    judge = JudgeConfig(base_url="http://judge/v1", model="m")
    config = config.model_copy(update={"evaluation": EvaluationConfig(benchmarks=(name,), judge=judge)})
    before = resolved_assets(config)
    monkeypatch.setattr(benchmark, "code_version", RAISED)
    raised = of_benchmark(name, config)
    assert f"scores/{name}" in raised and (f"judgments/{name}" in raised) == issubclass(benchmark, RatedBenchmark)
    check_made_again_once(before, raised, config)


def of_benchmark(name: str, config: Config | None = None) -> set[str]:
    """Its comparison, its answers, judgments and scores, and what its questions have in common with the data."""
    families = ("evaluation", "answers", "judgments", "scores", "contamination", "short_contamination")
    return {f"{family}/{name}" for family in families} & pipeline_of(config or maximal()).by_key.keys()


def check_made_again_once(before: Mapping[str, Asset], raised: set[str], config: Config | None = None) -> None:
    """With everything up to date `before`, a run makes what was `raised`, which comes out the same, and its readers.

    config: default: `maximal`.
    """
    config = config or maximal()
    sets = partition_sets(config)
    world = World([*before.values()], {"0": "i", "1": "j"}, constant=set(before), sets=sets)
    world.run_everything()
    assert raised and not world.plan()
    after = resolved_assets(config)
    world.assets = [*after.values()]
    plan = world.plan()
    reasons = {(work.asset, part): why for work in plan.work for part, why in work.reasons.items()}
    named = {(asset, part) for asset in raised for part in world.parts(asset)}
    assert {key for key, why in reasons.items() if "code version" in why} == named
    assert {reasons[key] for key in named} == {"changed: code version"}
    made = world.run(plan)
    assert {asset for asset, _ in made} == with_readers(after, raised)
    assert {key for key, why in reasons.items() if not why.startswith(AFTER)} <= made
    assert not world.plan(), "once"
    scored = {asset for asset in raised if before[asset].scorer}
    assert {asset for asset in after if after[asset].scorer != before[asset].scorer} == scored, "no old row is kept"


def with_readers(assets: Mapping[str, Asset], keys: set[str]) -> set[str]:
    """These and all that goes by their fingerprints."""
    found = set(keys)
    for asset in assets.values():
        changed = {name for name, by in asset.reads.items() if by == "fingerprint" and name in found}
        if asset.variant:  # of the variants it reads its own alone
            parts = {name: assets[name].parts.get(asset.variant) for name in changed - keys}
            changed -= {name for name, part in parts.items() if part is not None and not found & part.reads.keys()}
        if changed:
            found.add(asset.key)
    return found


def test_the_input_is_read_anew_as_the_new_code_reads_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    project = make_project(tmp_path, samples=12, shards=3)
    first = read_and_write(project)
    assert planned(project) == {}

    def shorter(*given: Any, **options: Any) -> Iterator[Sample]:
        for found in to_samples(*given, **options):
            assert isinstance(found, Sample)
            yield replace(found, response=found.response.removesuffix(" ."))

    to_samples = index.to_samples
    monkeypatch.setattr(index, "to_samples", shorter)
    raise_version(monkeypatch, "gateau_dagster.data.input_index.CODE_VERSION")
    assert planned(project) == dict.fromkeys("012", "changed: code version; input")
    second = read_and_write(project)
    expected = first.with_columns(pl.col("response").str.strip_suffix(" ."))
    assert second.drop("digest").equals(expected.drop("digest")) and not second.equals(expected)
    assert planned(project) == {}


def planned(project: Path) -> Mapping[str | None, str]:
    """The shards of the input that are out of date, and why."""
    work = state_of(config=load_project(project)).whole_plan().of("raw_long_sft")
    return {} if work is None else work.reasons


def read_and_write(project: Path) -> pl.DataFrame:
    """All shards as the asset makes them; the rows of all."""
    state = state_of(config=load_project(project))
    for number, table, rejected in read_shards(state.config.located_long_sft, state.index, range(3)):
        shard = str(number)
        state.store.write(table, "raw_long_sft", shard, state.wanted_stamp("raw_long_sft", shard), rejected)
    return state.read("raw_long_sft").sort("sample_id")
