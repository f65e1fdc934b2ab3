"""What each method of the registry asks for: exactly what it says it reads, and what that is made of."""

from typing import Any

import pytest

from gateau_dagster.config import Config
from gateau_dagster.methods.registry import all_methods, chosen_methods, sample_tables
from gateau_dagster.pipeline.declarations import Pipeline, pipeline_of
from gateau_dagster.pipeline.required_assets import left_out_sentence, required_assets

SHOWN = {"demonstrations": [{"instruction": "1 + 1?", "response": "2."}]}
# What a method is not offered without: its options, and a model beside the pair.
NEEDS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "gateau_unextended": ({"short": "third"}, {"third": {"path": "a/third"}}),
    "gateau_in_context": ({"short": "a", "long": "b"}, {"a": {"path": "a/a", **SHOWN}, "b": {"path": "a/b", **SHOWN}}),
    "hmg_non_homologous": ({"short": "third", "per": "character"}, {"third": {"path": "a/third"}}),
    "car": ({}, {"reward": {"path": "a/reward", "task": "reward"}}),
}
PAIR = {"short": {"path": "a/short", "context": "window", "window": 64}, "long": {"path": "a/long"}}
OF_THE_PAIR = {"perplexity/short", "perplexity/long", "cam", "combined_scores"}


def configured(
    method: str, *compare: str, models: dict[str, Any] | None = None, training: bool = False, **selection: Any
) -> Config:
    names = [name for name in (method, *compare) if name in NEEDS]
    further = {name: model for each in names for name, model in NEEDS[each][1].items()}
    options = {each: NEEDS[each][0] for each in names} | selection.pop("options", {})
    content = {
        "long_sft": {"path": "long.jsonl"},
        "models": (PAIR if models is None else models) | further,
        "selection": {"method": method, "compare": list(compare), "options": options, **selection},
        "training": {"enabled": training},
    }
    return Config.model_validate(content)


def pipeline(config: Config) -> Pipeline:
    return pipeline_of(config, {name: f"digest of {name}" for name in config.models}, None)


def wanted(config: Config) -> set[str]:
    return {node.asset for node in pipeline(config).nodes if node.wanted}


def declared(config: Config) -> set[str]:
    """By hand, from `reads` and `tables` alone."""
    found: set[str] = {"raw_long_sft", "selected_subset", "report"}
    chosen = chosen_methods(config)
    for method in chosen.values():
        found |= {*method.reads(config), *(table.asset for table in method.tables(config))}
    if list(chosen) != ["gateau"]:
        found |= {f"method_scores/{name}" for name in chosen}
    if len(chosen) > 1:
        found.add("comparison")
    if "combined_scores" in found:
        found |= OF_THE_PAIR
    return found


@pytest.mark.parametrize("name", sorted(all_methods()))
def test_a_method_wants_what_it_declares(name: str) -> None:
    config = configured(name)
    assert wanted(config) == declared(config)
    rest = OF_THE_PAIR - declared(config)
    assert set(pipeline(config).unwanted) == rest, "still assets that can be asked for"
    assert pipeline(config).by_name["report"].upstream.keys() == declared(config) - {"report"}


@pytest.mark.parametrize("name", sorted(all_methods()))
def test_compared_with_another_it_wants_what_both_declare(name: str) -> None:
    for other in ("random", "perplexity", "hmg"):
        config = configured(name, other)
        assert wanted(config) == declared(config)
        beside = set(pipeline(config).by_name["comparison"].upstream if name != other else ())
        assert beside <= declared(config)


def test_what_is_wanted_reads_nothing_that_is_not() -> None:
    for name in all_methods():
        nodes = pipeline(configured(name, "length", training=True)).nodes
        left = {node.asset for node in nodes if not node.wanted}
        assert all(not left & set(node.upstream) for node in nodes if node.wanted)


def test_wanting_a_table_is_no_part_of_what_it_is_made_from() -> None:
    one, two = (pipeline(configured("length", *compare)).by_name for compare in ((), ("gateau",)))
    for asset in ("raw_long_sft", *OF_THE_PAIR, "method_scores/length"):
        assert one[asset].inputs(dict.fromkeys(one[asset].upstream, "v")) == two[asset].inputs(
            dict.fromkeys(two[asset].upstream, "v")
        )
    assert {asset: (one[asset].wanted, two[asset].wanted) for asset in OF_THE_PAIR} == dict.fromkeys(
        OF_THE_PAIR, (False, True)
    )


def test_the_held_out_evaluation_needs_no_table_of_its_own() -> None:
    heldout = pipeline(configured("length", training=True)).by_name["evaluation/heldout"]
    assert set(heldout.upstream) == {"raw_long_sft", "selected_subset", "checkpoint"}
    with_table = pipeline(configured("perplexity", training=True)).by_name["evaluation/heldout"]
    assert set(with_table.upstream) - set(heldout.upstream) == {"perplexity/long"}


def test_rules_and_options_count() -> None:
    assert "perplexity/long" in wanted(configured("random", rule="token_budget", budget=9))
    assert "perplexity/short" in wanted(configured("length", options={"length": {"model": "short"}}))
    assert wanted(configured("length", segment_lengths=[64])) >= OF_THE_PAIR
    assert not OF_THE_PAIR & wanted(configured("length", segment_lengths=[128])), "that of `cam` is no further one"


def test_without_models_there_are_no_tables_of_theirs() -> None:
    assert [node.asset for node in pipeline(configured("length", "random", models={})).nodes] == [
        "raw_long_sft",
        "method_scores/length",
        "method_scores/random",
        "selected_subset",
        "comparison",
        "report",
    ]
    alone = pipeline(configured("perplexity", models={"long": {"path": "a/long"}})).by_name
    assert "perplexity/long" in alone and not {"cam", "combined_scores", "perplexity/short"} & set(alone)


def test_a_model_that_is_made_is_wanted_where_its_scores_are() -> None:
    made = {**PAIR, "cherry": {"path": "pre_experienced:long"}}
    stage = {"pre_experienced/cherry", "pre_experience_mix/cherry", "perplexity/cherry"}
    by_cherry = configured("ifd", models=made, options={"ifd": {"model": "cherry"}})
    assert stage <= wanted(by_cherry) and not OF_THE_PAIR & wanted(by_cherry)
    assert not stage & wanted(configured("ifd", models=made))
    assert stage <= wanted(configured("gateau", models=made)), "every configured model stands beside the presets"


def test_a_line_names_what_is_left_out() -> None:
    config = configured("length", "random")
    assert left_out_sentence(config, []) == ""
    assert left_out_sentence(config, ["cam"]).startswith("Left out, since length and random do not need it: cam. Ask")
    alone = left_out_sentence(configured("length"), ["cam", "combined_scores"])
    assert alone.startswith("Left out, since length does not need them: cam, combined_scores. Ask for one with --until")


def test_everything_upstream_of_an_end_is_wanted_and_nothing_else() -> None:
    upstream = {"raw_long_sft": [], "cam": ["raw_long_sft"], "t/a": ["raw_long_sft"], "t/b": ["t/a"], "t/c": ["t/b"]}
    config = configured("random")
    assert required_assets(config, upstream) == {"raw_long_sft"}
    assert required_assets(config, {**upstream, "selected_subset": ["t/b"]}) == {
        *("raw_long_sft", "selected_subset", "t/a", "t/b")
    }
    assert not sample_tables(config)
