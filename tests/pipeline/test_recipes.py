"""What each variant would be as the single run, and what a configuration of variants lacks."""

from pathlib import Path
from typing import Any

from gateau_dagster.config import Config
from gateau_dagster.config.variants import VariantsConfig
from gateau_dagster.pipeline.recipes import Recipe, recipe_of, selections
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
    assert recipe_of(configured(tmp_path, variants={"equal": "samples"}), "random").equal == "samples"
    assert recipe_of(configured(tmp_path, variants={"methods": ["random"]}), "random").equal is None
    alone = configured(tmp_path, variants={}, **{"selection.method": "random"})
    assert [*alone.variant_set] == ["base", "checkpoint", "random", "length"]


def test_without_the_long_model_nothing_counts_tokens() -> None:
    section = VariantsConfig()
    assert section.made_equal(tokens_known=False) is None and section.made_equal(tokens_known=True) == "tokens"


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


def test_short_conversations_alone(tmp_path: Path) -> None:
    config = configured(tmp_path, variants={"also": ["short_only", "full"]})
    assert config_of(config, "short_only").training.mix.without_long
    assert config_of(config, "full").training == config.training
    assert not recipe_of(config, "short_only").reads


def test_equal_tokens_are_counted_by_the_long_model(tmp_path: Path) -> None:
    config = configured(tmp_path, variants={"methods": ["random"], "equal": "tokens"})
    assert "perplexity/long" in recipe_of(config, "random").reads


def test_every_selection_is_looked_at_once(tmp_path: Path) -> None:
    config = configured(tmp_path, variants={**MATRIX, "methods": ["gateau"], "also": ["full"]})
    found = [(each.preset, each.fraction) for each in selections(config)]
    assert found == [("robust", None), ("paper", 0.1), ("robust", 0.1), ("paper", 0.5), ("robust", 0.5)]
