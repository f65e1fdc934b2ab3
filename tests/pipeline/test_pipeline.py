"""The assets of a configuration: their order, and which of them each method asks for: exactly what it says it reads."""

from collections.abc import Iterator, Sequence

import pytest

from gateau_dagster.config import Config
from gateau_dagster.methods.registry import all_methods, chosen_methods
from gateau_dagster.pipeline import declarations
from gateau_dagster.pipeline.asset import SHARD, Asset
from gateau_dagster.pipeline.declared import left_out_sentence, pipeline_of
from gateau_dagster.pipeline.feature import features
from tests.pipeline.by_method import PAIR, by_method, maximal
from tests.pipeline.configured import resolved_assets
from tests.pipeline.world import World

OF_THE_PAIR = {"perplexity/short", "perplexity/long", "cam", "combined_scores"}


def required(config: Config) -> set[str]:
    return set(pipeline_of(config).required)


def declared(config: Config) -> set[str]:
    """Collect them by hand, from `reads` and `tables` alone."""
    found: set[str] = {"raw_long_sft", "selected_subset", "report"}
    chosen = chosen_methods(config)
    for method in chosen.values():
        found |= {*method.reads(), *(table.asset for table in method.tables())}
    if list(chosen) != ["gateau"]:
        found |= {f"method_scores/{name}" for name in chosen}
    if len(chosen) > 1:
        found.add("comparison")
    if "combined_scores" in found:
        found |= OF_THE_PAIR
    return found


@pytest.mark.parametrize("name", sorted(all_methods()))
def test_a_method_requires_what_it_declares_alone_and_compared_with_another(name: str) -> None:
    for compared in ((), ("random",), ("perplexity",), ("hmg",)):
        config = by_method(name, *compared)
        pipeline, wanted = pipeline_of(config), declared(config)
        assert pipeline.required == wanted
        assert {*pipeline.left_out} == OF_THE_PAIR - wanted, "still assets that can be asked for"
        assert pipeline.by_key["report"].reads.keys() == wanted - {"report"}
        assert "comparison" not in wanted or {*pipeline.by_key["comparison"].reads} <= wanted


def test_what_is_required_reads_nothing_that_is_not() -> None:
    for name in all_methods():
        pipeline = pipeline_of(by_method(name, "length", training=True))
        assert pipeline.ancestors(pipeline.required) == pipeline.required


def test_asking_for_a_table_is_no_part_of_what_it_is_made_from() -> None:
    configs = by_method("length"), by_method("length", "gateau")
    one, two = map(resolved_assets, configs)
    for asset in ("raw_long_sft", *OF_THE_PAIR, "method_scores/length"):
        assert one[asset].made_from(dict.fromkeys(one[asset].reads, "v")) == two[asset].made_from(
            dict.fromkeys(two[asset].reads, "v")
        )
    assert [OF_THE_PAIR & required(config) for config in configs] == [set(), OF_THE_PAIR]


@pytest.mark.parametrize("method", ["length", "perplexity", "gateau"])
def test_the_held_out_evaluation_reads_nothing_of_the_method(method: str) -> None:
    heldout = pipeline_of(by_method(method, training=True)).by_key["evaluation/heldout"]
    assert set(heldout.reads) == {"raw_long_sft", "document_split", "checkpoint"}


def test_samples_are_reserved_where_something_is_measured_on_them() -> None:
    whole = pipeline_of(by_method("length", "random", training=True))
    assert "document_split" in whole.required
    readers = {asset.key for asset in whole.assets if "document_split" in asset.reads}
    assert readers == {"selected_subset", "comparison", "evaluation/heldout", "report"}
    for without in ({"enabled": False}, {"benchmarks": ["needle"]}):
        config = by_method("length", "random", training=True)
        config = Config.model_validate({**config.model_dump(), "evaluation": without})
        assert "document_split" not in pipeline_of(config).by_key
    assert "document_split" not in pipeline_of(by_method("length", "random")).by_key


def test_rules_and_options_count() -> None:
    assert "perplexity/long" in required(by_method("random", rule="token_budget", budget=9))
    assert "perplexity/short" in required(by_method("length", options={"length": {"model": "short"}}))
    assert required(by_method("length", segment_lengths=[64])) >= OF_THE_PAIR
    assert not OF_THE_PAIR & required(by_method("length", segment_lengths=[128])), "that of `cam` is no further one"


def test_without_models_there_are_no_tables_of_theirs() -> None:
    assert [asset.key for asset in pipeline_of(by_method("length", "random", models={})).assets] == [
        "raw_long_sft",
        "method_scores/length",
        "method_scores/random",
        "selected_subset",
        "comparison",
        "report",
    ]
    alone = pipeline_of(by_method("perplexity", models={"long": {"path": "a/long"}})).by_key
    assert "perplexity/long" in alone and not {"cam", "combined_scores", "perplexity/short"} & set(alone)


def test_a_model_that_is_made_is_required_where_its_scores_are() -> None:
    made = {**PAIR, "cherry": {"path": "pre_experienced:long"}}
    stage = {"pre_experienced/cherry", "pre_experience_mix/cherry", "perplexity/cherry"}
    by_cherry = by_method("ifd", models=made, options={"ifd": {"model": "cherry"}})
    assert stage <= required(by_cherry) and not OF_THE_PAIR & required(by_cherry)
    assert not stage & required(by_method("ifd", models=made))
    assert stage <= required(by_method("gateau", models=made)), "every configured model stands beside the presets"


def test_a_line_names_what_is_left_out() -> None:
    config = by_method("length", "random")
    assert left_out_sentence(config, []) == ""
    assert left_out_sentence(config, ["cam"]).startswith("Left out, since length and random do not need it: cam.")
    alone = left_out_sentence(by_method("length"), ["cam", "combined_scores"])
    assert alone.startswith("Left out, since length does not need them: cam, combined_scores. Request one with --until")


def test_the_assets_stand_in_topological_order() -> None:
    pipeline, seen = pipeline_of(maximal()), set[str]()
    for asset in pipeline.assets:
        assert set(asset.reads) <= seen, asset.key
        seen.add(asset.key)
    made_after_it = {"report"} | {asset.key for feature in features() for asset in feature.beside(maximal())}
    assert set(pipeline.by_key["report"].reads) == seen - made_after_it and pipeline.required == seen


def test_partitions_are_those_of_the_set() -> None:
    pipeline = pipeline_of(by_method("length", training=True))
    assert pipeline.partitions("cam") == ["0", "1"] and pipeline.partitions("training_mix") == [None]


def declare(monkeypatch: pytest.MonkeyPatch, *assets: Asset) -> None:
    """These assets after the project's own."""

    def declared(config: Config) -> Iterator[Asset]:
        del config
        yield from assets

    monkeypatch.setattr(declarations, "DECLARED", (*declarations.DECLARED, declared))


def asset(key: str, reads: Sequence[str] = (), *, goal: bool = False, partitions: str = "") -> Asset:
    return Asset(
        key=key,
        maker="dummy",
        group="data",
        kinds=(),
        summary="for a test",
        reads=dict.fromkeys(reads, "fingerprint"),
        partitions=partitions,
        code_version="1",
        goal=goal,
    )


def test_one_declaration_more_is_an_asset_more(monkeypatch: pytest.MonkeyPatch) -> None:
    config = by_method("length")
    world = World([*resolved_assets(config).values()], {"0": "i", "1": "j"})
    world.run_everything()
    declare(monkeypatch, asset("dummy", ["method_scores/length"], goal=True, partitions=SHARD))
    pipeline = pipeline_of(config)
    assert "dummy" in pipeline.required and "dummy" in pipeline.by_key["report"].reads
    world.assets = [*resolved_assets(config).values()]
    plan = world.plan()
    assert [work.asset for work in plan.work] == ["dummy", "report"]
    assert plan.work[0].reasons == {"0": "missing", "1": "missing"}
    world.run(plan)
    assert not world.plan()


def test_what_goals_read_is_required_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    tables = asset("t/a", ["raw_long_sft"]), asset("t/b", ["t/a"]), asset("t/c", ["t/b"])
    declare(monkeypatch, *tables, asset("end", ["t/b"], goal=True))
    before = {"raw_long_sft", "method_scores/random", "selected_subset", "report"}
    config = by_method("random")
    assert required(config) == before | {"t/a", "t/b", "end"}
    assert "t/c" in pipeline_of(config).left_out
    assert "t/c" in required(by_method("gateau")), "the page about the presets shows everything"
