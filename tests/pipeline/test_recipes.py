"""What each variant would be as the single run, and what a configuration of variants lacks."""

from pathlib import Path
from typing import Any

import pytest

from gateau_dagster.config import Config
from gateau_dagster.features.evaluation.statistics.experiment import lines_of
from gateau_dagster.methods.registry import chosen_methods
from gateau_dagster.pipeline.declared import pipeline_of
from gateau_dagster.pipeline.recipes import MIXES, Recipe, check_variants, recipe_of, selections
from gateau_dagster.tables import TRAINING_MIX
from gateau_dagster.training.training_mix import mix_columns
from tests.kit.error_codes import refused
from tests.pipeline.by_method import by_method
from tests.pipeline.configured import configured

MATRIX = {"methods": ["gateau", "random"], "presets": ["paper", "robust"], "fractions": [0.1, 0.5], "seeds": [1, 2]}


def config_of(config: Config, name: str) -> Config:
    return recipe_of(config, name).config


def test_a_variant_is_the_configuration_with_its_own_choice(tmp_path: Path) -> None:
    config = configured(tmp_path, **{"selection.count": 3}, variants=MATRIX)
    paper, random = config_of(config, "paper-0.5-s2"), config_of(config, "random-0.1-s1")
    assert (paper.selection.method, paper.selection.preset, paper.selection.parameters) == (
        "gateau",
        "paper",
        {"rule": "top", "fraction": 0.5, "duplicates": "one"},
    )
    assert (paper.training.seed, random.training.seed) == (2, 1)
    assert random.selection.method == "random" and random.selection.preset == config.selection.preset
    assert paper.training == config.training.model_copy(update={"seed": 2}) and paper.models == config.models


def test_by_default_the_selection_meets_chance_and_length_at_equal_tokens(tmp_path: Path) -> None:
    config = configured(tmp_path, variants={})
    assert [*config.variant_set] == ["base", "checkpoint", "gateau", "random", "length"]
    assert {recipe_of(config, name).equal for name in ("gateau", "random", "length")} == {"tokens"}
    assert "perplexity/long" in recipe_of(config, "random").reads, "which counts them"
    assert config.variants is not None and config.variants.made_equal(tokens_known=False) is None, "no long model"
    assert recipe_of(configured(tmp_path, variants={"equal": "samples"}), "random").equal == "samples"
    assert recipe_of(configured(tmp_path, variants={"methods": ["random"]}), "random").equal is None
    alone = configured(tmp_path, variants={}, **{"selection.method": "random"})
    assert [*alone.variant_set] == ["base", "checkpoint", "random", "length"]


def test_without_a_matrix_it_is_the_configuration(tmp_path: Path) -> None:
    config = configured(tmp_path, variants={"methods": ["gateau"]})
    assert [*config.variant_set] == ["base", "checkpoint", "gateau"]
    assert config_of(config, "gateau") == Recipe(config).config == config
    assert recipe_of(config, "checkpoint") == Recipe(config), "the single run"


def test_only_a_method_that_draws_lots_takes_the_seed(tmp_path: Path) -> None:
    config = configured(tmp_path, variants=MATRIX)
    assert recipe_of(config, "random-0.1-s1").draws_lots and not recipe_of(config, "paper-0.1-s1").draws_lots
    assert config_of(config, "random-0.1-s2").selection.options == {"random": {"seed": 2}}
    assert recipe_of(config, "random-0.1-s1").reads.keys() == {"raw_long_sft", "document_split"}
    same = configured(tmp_path, variants=MATRIX, **{"selection.options": {"random": {"seed": 1}}})
    assert not recipe_of(same, "random-0.1-s1").draws_lots, "the method's asset has these scores"
    assert "method_scores/random" in recipe_of(same, "random-0.1-s1").reads


def test_a_budget_takes_the_rule_that_counts_tokens(tmp_path: Path) -> None:
    def rule(**selection: Any) -> dict[str, Any]:
        changes = {f"selection.{name}": value for name, value in selection.items()}
        config = configured(tmp_path, variants={"budgets": [5000]}, **changes)
        return config_of(config, "gateau-5000t").selection.parameters

    assert rule() == rule(rule="per_source") == {"rule": "token_budget", "budget": 5000, "duplicates": "one"}
    assert rule(rule="per_source_tokens", budget=9) == {
        "rule": "per_source_tokens",
        "budget": 5000,
        "short_source": "error",
        "duplicates": "one",
    }


def test_a_fraction_keeps_the_rule_that_counts_samples(tmp_path: Path) -> None:
    config = configured(tmp_path, variants={"fractions": [0.5]}, **{"selection.rule": "per_source"})
    assert config_of(config, "gateau-0.5").selection.parameters["rule"] == "per_source"
    config = configured(
        tmp_path, variants={"fractions": [0.5]}, **{"selection.rule": "token_budget", "selection.budget": 9}
    )
    assert config_of(config, "gateau-0.5").selection.parameters == {"rule": "top", "fraction": 0.5, "duplicates": "one"}


def test_baselines_keep_their_order_and_draws_have_the_seed_of_the_variant(tmp_path: Path) -> None:
    for rule, budget in (("mix", None), ("clean", 900), ("auto", 900), ("ccs", None)):
        changes = {"selection.rule": rule, "selection.budget": budget, "selection.use": {"far": 0.4}}
        config = configured(tmp_path, variants={"methods": ["gateau", "ladm", "random"], "seeds": [1, 2]}, **changes)
        plain = {"rule": "top", "fraction": 0.1} if budget is None else {"rule": "token_budget", "budget": 900}
        assert config_of(config, "random-s2").selection.parameters == {**plain, "duplicates": "one"}
        for name in ("gateau-s2", "ladm-s2"):
            found = config_of(config, name).selection
            assert (found.rule, found.seed, found.budget) == (rule, 2, budget)
        reads = recipe_of(config, "gateau-s1").reads
        assert ("evidence" in reads) == (rule != "ccs")
        assert ("far_sum" in reads.get("evidence", [])) == (rule == "auto")
    chosen = configured(tmp_path, variants={}, **{"selection.method": "random", "selection.rule": "ccs"})
    assert config_of(chosen, "random").selection.rule == "ccs", "it is the selection itself"


def test_short_conversations_alone(tmp_path: Path) -> None:
    config = configured(tmp_path, variants={"also": ["short_only", "full"]})
    assert config_of(config, "short_only").training.mix.without_long
    assert config_of(config, "full").training == config.training
    assert not recipe_of(config, "short_only").reads


def test_every_selection_is_looked_at_once(tmp_path: Path) -> None:
    config = configured(tmp_path, variants={**MATRIX, "methods": ["gateau"], "also": ["full"]})
    found = [(each.preset, each.fraction) for each in selections(config)]
    assert found == [("robust", None), ("paper", 0.1), ("robust", 0.1), ("paper", 0.5), ("robust", 0.5)]


BUDGET: dict[str, Any] = {"selection.rule": "token_budget", "selection.budget": 999, "training.max_steps": 7}


def changed(folder: Path, *also: dict[str, Any], **more: Any) -> Config:
    """The configuration whose variants are random data of two seeds and what is trained with other keys."""
    return configured(folder, **BUDGET | more, variants={"methods": ["random"], "seeds": [1, 2], "also": [*also]})


def test_other_keys_replace_those_of_the_single_run(tmp_path: Path) -> None:
    top = {"rule": "top", "count": 3, "budget": None}
    config = changed(tmp_path, {"name": "top", "selection": top, "training": {"max_steps": 5}})
    check_variants(config)
    found = config_of(config, "top-s2")
    assert found.selection.method == "gateau" and found.selection.parameters["count"] == 3
    assert (found.training.max_steps, found.training.seed) == (5, 2)
    assert config_of(config, "random-s2").selection.parameters["budget"] == 999
    assert recipe_of(config, "top-s2").subset_part().settings != recipe_of(config, "random-s2").subset_part().settings
    assert {line.name: line.series for line in lines_of(config)} == {
        "base": "",
        "checkpoint": "",
        "random": "random",
        "top": "top",
    }


def test_a_second_random_draw_has_the_seeds_of_the_training_and_others_of_the_draw(tmp_path: Path) -> None:
    again = {"method": "random", "options": {"random": {"seed": 100}}}
    config = changed(tmp_path, {"name": "again", "selection": again})
    check_variants(config)
    assert config_of(config, "again-s2").selection.options == {"random": {"seed": 102}}
    assert config_of(config, "again-s2").training == config_of(config, "random-s2").training
    assert {line.name: line.series for line in lines_of(config)}["again"] == "again", "it is no reference"


def test_a_method_that_only_such_a_variant_names_is_scored(tmp_path: Path) -> None:
    config = changed(tmp_path, {"name": "long", "selection": {"method": "length"}})
    assert [*chosen_methods(config)] == ["gateau", "random", "length"]
    assert "method_scores/length" in pipeline_of(config).by_key


def test_a_variant_weighs_tokens_where_the_single_run_does_not(tmp_path: Path) -> None:
    weighed = {"name": "weighed", "selection": {"method": "random"}, "training": {"loss": "longce"}}
    found = pipeline_of(changed(tmp_path, weighed)).by_key
    assert [found[name].columns for name in ("training_mix", MIXES)] == [TRAINING_MIX, mix_columns(weighted=True)]
    assert {"perplexity/short", "perplexity/long"} <= found[MIXES].parts["weighed-s1"].reads.keys()
    assert "perplexity/short" not in found[MIXES].parts["random-s1"].reads


def test_a_variant_draws_by_its_seed_beside_its_own_and_random_has_no_quotas(tmp_path: Path) -> None:
    arms = [
        {"name": "other", "selection": {"rule": "clean", "seed": 100}},
        {"name": "again", "selection": {"method": "random"}},
        {"name": "quotas", "selection": {"method": "random", "rule": "mix"}},
    ]
    quotas = {"selection.rule": "mix", "selection.use": {"far": 0.5}, "selection.evidence": True}
    config = changed(tmp_path, *arms, **quotas)
    rules = {name: config_of(config, f"{name}-s2").selection for name in ("random", "other", "again", "quotas")}
    assert {name: selection.rule for name, selection in rules.items()} == {
        "random": "token_budget",
        "other": "clean",
        "again": "token_budget",
        "quotas": "mix",
    }
    assert (rules["other"].seed, rules["quotas"].seed) == (102, 2)


def test_null_removes_a_key(tmp_path: Path) -> None:
    plain = {"name": "plain", "selection": {"rule": None, "budget": None}, "training": {"max_steps": None}}
    found = config_of(changed(tmp_path, plain), "plain-s1")
    assert (found.selection.rule, found.selection.budget, found.training.max_steps) == ("top", None, None)
    nulls = {"rule": "mix", "use": {"far": 0.5}, "seed": None, "options": None, "method": None}
    config = changed(tmp_path, {"name": "nulls", "selection": nulls}, **{"selection.evidence": True})
    chosen_methods(config)
    assert config_of(config, "nulls-s2").selection.parameters["seed"] == 2
    drawn = changed(tmp_path, {"name": "drawn", "selection": {"method": "random", "options": None}})
    assert config_of(drawn, "drawn-s2").selection.options["random"]["seed"] == 2


def test_auto_depends_on_whether_another_model_is_trained() -> None:
    found = []
    for model in ("long", "short"):
        config = by_method("gateau", training=True, rule="auto")
        config = config.model_copy(update={"training": config.training.model_copy(update={"model": model})})
        found.append(recipe_of(config, None).subset_part().settings)
    assert found[0] != found[1], "the far deficit of another model is not known, which decides the verdict"


def test_variants_of_a_mix_draw_by_their_seed_and_cut_contexts_for_themselves(tmp_path: Path) -> None:
    mix = {"rule": "mix", "use": {"far": 0.5}}
    arms = [{"name": "mix", "selection": mix}, {"name": "cut", "selection": mix, "training": {"trim": True}}]
    config = changed(tmp_path, *arms, **{"selection.evidence": True})
    check_variants(config)
    assert [config_of(config, f"mix-s{seed}").selection.parameters["seed"] for seed in (1, 2)] == [1, 2]
    columns = [column.name for column in pipeline_of(config).by_key[MIXES].columns]
    assert "trimmed_tokens" in columns and "weights" not in columns
    assert "training.trim" in recipe_of(config, "cut-s1").subset_part().settings
    assert "training.trim" not in recipe_of(config, "mix-s1").subset_part().settings


@pytest.mark.parametrize(
    ("keys", "code"),
    [
        ({"selection": {"rule": "top"}}, "selection.rule_settings"),  # budget stays
        ({"selection": {"method": "nope"}}, "methods.unknown"),
        ({"selection": {"drop": ["near"]}}, "variants.impossible"),
        ({"selection": {"rule": "diverse", "budget": None, "encoder": "enc"}}, "variants.impossible"),
        ({"selection": {"rule": "mix", "use": {"far": 3}}}, "config.value"),
        ({"training": {"lr": 1}}, "config.unknown_key"),
        ({"training": {"mix": {"without_long": True}}}, "training.no_conversations"),
    ],
)
def test_keys_that_do_not_fit_are_refused_with_the_variant(tmp_path: Path, keys: dict[str, Any], code: str) -> None:
    with refused(code) as error:
        config = changed(tmp_path, {"name": "odd", **keys}, short_chat=None)
        chosen_methods(config)
        check_variants(config)
    message = str(error.value)
    assert code == "methods.unknown" or message.startswith("variants.also: odd")
    assert "Input should" not in message and "Extra inputs" not in message
