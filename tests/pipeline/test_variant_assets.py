"""The assets of an experiment: there where they are asked for, and each partition made from its own."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from gateau_dagster.config import Config
from gateau_dagster.config.base import Section
from gateau_dagster.features.evaluation.benchmark import MeasuredBenchmark, QuestionBenchmark
from gateau_dagster.features.evaluation.judged import RatedBenchmark
from gateau_dagster.features.evaluation.registry import all_benchmarks, scored_benchmarks, shared_answers
from gateau_dagster.pipeline.asset import VARIANT, Asset
from gateau_dagster.pipeline.declared import partition_sets, pipeline_of
from tests.pipeline.configured import configured, resolved_assets
from tests.pipeline.world import World

MODELS = ["variant/selected_subset", "variant/training_mix", "variant/checkpoint"]


def of_variants(folder: Path, **changes: Any) -> list[str]:
    return [each.key for each in pipeline_of(configured(folder, **changes)).assets if each.partitions == VARIANT]


def test_without_variants_the_assets_are_those_of_the_single_run(tmp_path: Path) -> None:
    assert of_variants(tmp_path) == []
    values = ["scores/heldout", "scores/needle"]
    assert of_variants(tmp_path, variants={"fractions": [0.1]}) == [*MODELS, *values]


def test_each_variant_reads_what_it_is_made_from(tmp_path: Path) -> None:
    section = {"methods": ["gateau", "random"], "fractions": [0.1], "also": ["full", {"name": "o", "path": "a/other"}]}
    config = configured(tmp_path, variants=section)
    asset = resolved_assets(config)["variant/selected_subset"]
    assert [*asset.parts] == ["base", "checkpoint", "gateau-0.1", "random-0.1", "full", "o"]
    reads = {name: {*asset.of_partition(name).reads} for name in asset.parts}
    samples = {"raw_long_sft", "document_split"}
    assert reads["base"] == reads["checkpoint"] == reads["o"] == set()
    assert reads["gateau-0.1"] == {*samples, "combined_scores"} and reads["full"] == samples
    assert reads["random-0.1"] == {*samples, "method_scores/random"}
    models = resolved_assets(config)["variant/checkpoint"]
    assert dict(models.of_partition("checkpoint").reads) == {"checkpoint": "content", "training_mix": "content"}
    assert dict(models.of_partition("full").reads) == {"variant/training_mix": "content"}
    assert not models.of_partition("base").reads and not models.of_partition("o").reads


def test_where_the_base_model_measures_texts_another_one_asks_everybody_again(tmp_path: Path) -> None:
    """Test that nothing else of a model that is not trained here changes."""
    config = configured(tmp_path, variants={"fractions": [0.1], "also": [{"name": "o", "path": "a/other"}]})
    known = dict.fromkeys(config.models, "one")
    before, after = (resolved_assets(config, {**known, "long": digest}) for digest in ("one", "two"))
    own = ("scores/heldout", "scores/needle")
    assert [name for name in own if before[name].settings != after[name].settings] == ["scores/heldout"]


def world_of(config: Config, constant: set[str] | None = None) -> World:
    """Everything made."""
    inputs = {shard: f"input {shard}" for shard in partition_sets(config)["shard"]}
    world = World([*resolved_assets(config).values()], inputs, constant, partition_sets(config))
    world.run_everything()
    assert not world.plan()
    return world


def planned(world: World, config: Config) -> Mapping[str, set[str | None]]:
    """The variants that are to be made under another configuration, by asset."""
    world.assets, world.sets = [*resolved_assets(config).values()], dict(partition_sets(config))
    of_variants = {asset.key for asset in world.assets if asset.partitions == VARIANT}
    return {work.asset: {*work.reasons} for work in world.plan().work if work.asset in of_variants}


MATRIX: dict[str, Any] = {"methods": ["gateau", "random"], "fractions": [0.1, 0.5], "also": ["full", "short_only"]}
OF_GATEAU, OF_RANDOM = {"gateau-0.1", "gateau-0.5"}, {"random-0.1", "random-0.5"}
EVERY = OF_GATEAU | OF_RANDOM | {"full", "short_only"}
TRAINED: Mapping[str, set[str]] = {"variant/checkpoint": EVERY | {"checkpoint"}}
MIXED = {"variant/training_mix": EVERY, **TRAINED}


def each(variants: set[str]) -> dict[str, set[str]]:
    return dict.fromkeys(MODELS, variants)


# Another value of a field, and the variants that are made again for it.
CHANGES: dict[str, tuple[Any, Mapping[str, set[str]]]] = {
    "variants.also": (["full", "short_only", {"name": "o", "path": "a/o"}], each({"o"})),
    "variants.methods": (["gateau", "random", "length"], each({"length-0.1", "length-0.5"})),
    "variants.fractions": ([0.1, 0.5, 0.7], each({"gateau-0.7", "random-0.7"})),
    "variants.presets": (["robust"], each({"robust-0.1", "robust-0.5"})),
    "variants.seeds": ([42], each({f"{name}-s42" for name in EVERY})),
    "variants.equal": (
        "samples",
        {"variant/selected_subset": OF_GATEAU | OF_RANDOM, "variant/training_mix": OF_GATEAU | OF_RANDOM}
        | {"variant/checkpoint": OF_GATEAU | OF_RANDOM},
    ),
    "selection.fraction": (0.3, {"variant/checkpoint": {"checkpoint"}}),
    "selection.alpha": (0.1, {**each(OF_GATEAU), "variant/checkpoint": OF_GATEAU | {"checkpoint"}}),
    "selection.options": (
        {"random": {"seed": 5}},
        each(OF_RANDOM),
    ),
    "training.max_length": (64, MIXED),
    "training.learning_rate": (1e-3, TRAINED),
    "training.save_steps": (7, {}),
    "models.long.path": (
        "a/other",
        {**each(OF_GATEAU), **MIXED, "variant/checkpoint": EVERY | {"base", "checkpoint"}},
    ),
    "short_chat.fraction": (0.5, MIXED),
}


@pytest.mark.parametrize("field", CHANGES)
def test_a_change_reaches_exactly_the_variants_whose_result_it_changes(field: str, tmp_path: Path) -> None:
    """Each output's content is a function of what it is made from: what may follow, follows."""
    value, wanted = CHANGES[field]
    base: dict[str, Any] = {f"variants.{name}": value for name, value in MATRIX.items()}
    world = world_of(configured(tmp_path, **base))
    found = planned(world, configured(tmp_path, **{**base, field: value}))
    assert {asset: variants for asset, variants in found.items() if asset in MODELS} == wanted


def test_an_equal_choice_under_other_scores_trains_nothing(tmp_path: Path) -> None:
    config = configured(tmp_path, variants=MATRIX)
    world = world_of(config, constant={"variant/selected_subset", "selected_subset"})
    world.inputs["0"] = "edited"
    made = world.run(world.plan())
    assert {("variant/selected_subset", name) for name in EVERY - {"short_only"}} <= made
    assert not {key for key in made if key[0] in {"variant/training_mix", "variant/checkpoint"}}
    assert not world.plan()


def test_a_training_is_named_by_what_goes_into_it(tmp_path: Path) -> None:
    """Not by the variant: two that come to an equal mix are one training."""
    config = configured(tmp_path, variants={"methods": ["gateau", "random"], "seeds": [1, 2]})
    asset = resolved_assets(config)["variant/checkpoint"]
    names = [f"{method}-s{seed}" for method in ("gateau", "random") for seed in (1, 2)]
    made = {name: asset.of_partition(name).fingerprint({"variant/training_mix": "equal"}) for name in names}
    assert made["gateau-s1"] == made["random-s1"] != made["gateau-s2"] == made["random-s2"]


def benchmark(name: str, base: type, **own: Any) -> Any:
    """A benchmark without options that measures nothing."""
    given = {"name": name, "title": name, "description": name, "unit": "%", **own}
    return type(name.title(), (base,), {"__annotations__": {"options": Section}, **given})


def nothing(*_: Any) -> list[Any]:
    return []


SCORED = {
    "measured": benchmark("measured", MeasuredBenchmark, measure=nothing),
    "asked": benchmark("asked", QuestionBenchmark, questions=nothing),
    "judged": benchmark("judged", RatedBenchmark, questions=nothing, requests=nothing, check=nothing),
}


@pytest.fixture
def benchmarks(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Three that score one model at a time; needle does so besides."""
    known: Any = all_benchmarks()
    for name, made in SCORED.items():
        monkeypatch.setitem(known, name, made)
    yield


@pytest.mark.usefixtures("benchmarks")
def test_a_benchmark_that_scores_has_its_assets(tmp_path: Path) -> None:
    asked = {"evaluation.benchmarks": ("needle", *SCORED)}
    config = configured(tmp_path, **asked)
    found = pipeline_of(config)
    tables = ["answers/asked", "answers/judged", "judgments/judged", *(f"scores/{name}" for name in SCORED)]
    assert {*of_variants(tmp_path, **asked)} == {"variant/checkpoint", *tables}
    assert found.partitions("scores/asked") == ["base", "checkpoint"]
    assert {*found.by_key["experiment"].reads} == {"variant/checkpoint", "judgments/judged"} | {
        f"scores/{name}" for name in SCORED
    }
    reads = {key: dict(found.by_key[key].reads) for key in tables}
    assert reads["answers/asked"] == reads["scores/measured"] == {"variant/checkpoint": "content"}
    assert reads["judgments/judged"] == {"answers/judged": "content"}
    assert reads["scores/judged"] == {"answers/judged": "content", "judgments/judged": "content"}
    after = {"experiment", "untouched_experiment", "report"}
    assert found.descendants(["variant/checkpoint"]) == {"variant/checkpoint", *after, *tables}


@pytest.mark.usefixtures("benchmarks")
def test_answers_to_the_same_questions_are_shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the order of the benchmarks, so that nothing is asked twice; rows of a later one count, too."""
    monkeypatch.setattr(SCORED["judged"], "asks_as", "asked")
    both = configured(tmp_path, **{"evaluation.benchmarks": ("asked", "judged")})
    reads = {key: dict(each.reads) for key, each in pipeline_of(both).by_key.items()}
    assert reads["answers/judged"] == {"variant/checkpoint": "content", "answers/asked": "content"}
    assert reads["answers/asked"] == {"variant/checkpoint": "content"}
    assert shared_answers(both, "asked") == ["answers/judged"]
    assert shared_answers(both, "judged") == ["answers/asked"]
    alone = configured(tmp_path, **{"evaluation.benchmarks": ("judged",)})
    assert dict(pipeline_of(alone).by_key["answers/judged"].reads) == {"variant/checkpoint": "content"}
    assert shared_answers(alone, "judged") == []


@pytest.mark.usefixtures("benchmarks")
@pytest.mark.parametrize(
    ("field", "value", "tried_again"),
    [
        ("scoring.device", "cuda", {"answers/asked", "scores/measured"}),
        ("scoring.batch_tokens", 5, set()),
    ],
)
def test_what_was_not_to_be_had_is_tried_again_by_other_means(
    field: str, value: Any, tried_again: set[str], tmp_path: Path
) -> None:
    asked: dict[str, Any] = {"evaluation.benchmarks": ("measured", "asked")}
    before, after = (resolved_assets(configured(tmp_path, **asked, **more)) for more in ({}, {field: value}))
    same = [
        key for key, asset in before.items() if asset.settings == after[key].settings and asset.partitions == VARIANT
    ]
    assert {key for key in same if before[key].means != after[key].means} == tried_again


@pytest.mark.usefixtures("benchmarks")
@pytest.mark.parametrize(
    ("name", "value", "differs"), [("base_url", "http://there/v1", True), ("key", "K", True), ("concurrency", 2, False)]
)
def test_refused_questions_are_asked_of_another_server(name: str, value: Any, differs: bool, tmp_path: Path) -> None:
    def asset(engine: dict[str, Any]) -> Asset:
        asked = {"evaluation.benchmarks": ("asked",), "evaluation.engine": engine}
        return resolved_assets(configured(tmp_path, **asked))["answers/asked"]

    engine = {"base_url": "http://here/v1"}
    before, after = asset(engine), asset({**engine, name: value})
    assert (before.means != after.means) is differs and before.settings == after.settings


@pytest.mark.usefixtures("benchmarks")
def test_what_compares_by_itself_scores_only_where_there_are_variants(tmp_path: Path) -> None:
    asked = {"evaluation.benchmarks": ("needle",)}
    assert not scored_benchmarks(configured(tmp_path, **asked)) and not of_variants(tmp_path, **asked)
    both = configured(tmp_path, variants={}, **asked)
    assert {"evaluation/needle", "scores/needle", "experiment"} <= {*pipeline_of(both).by_key}


@pytest.mark.usefixtures("benchmarks")
def test_another_model_is_asked_alone(tmp_path: Path) -> None:
    asked: dict[str, Any] = {"evaluation.benchmarks": ("judged",)}
    world = world_of(configured(tmp_path, variants=MATRIX, **asked))
    more = {**MATRIX, "fractions": [0.1, 0.5, 0.7]}
    found = planned(world, configured(tmp_path, variants=more, **asked))
    assert {*map(frozenset, found.values())} == {frozenset({"gateau-0.7", "random-0.7"})}
    assert {"answers/judged", "judgments/judged", "scores/judged"} <= {*found}
