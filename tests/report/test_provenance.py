"""Test the provenance of a report."""

from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any

import pytest
import yaml

from gateau_dagster.config import Config, SelectionConfig
from gateau_dagster.evaluation.registry import with_benchmarks
from gateau_dagster.report import provenance as module
from gateau_dagster.report.provenance import (
    chosen_by,
    configuration_text,
    package_versions,
    provenance,
    ranked_by,
    scored_by,
)
from tests.project import configured


def test_the_configuration_comes_back_from_its_text() -> None:
    given = configured(
        training={"deepspeed": {"zero_optimization": {"stage": 2}}}, selection={"ground_truth": ["über"]}
    )
    text = configuration_text(given)
    back = Config.model_validate(yaml.safe_load(text))
    assert configuration_text(back) == text and back == with_benchmarks(given)
    assert "über" in text


def test_a_list_of_plain_values_takes_one_line() -> None:
    pairs = [{"key": "colour", "values": ["red", "blue"]}]
    needle = {"pairs": pairs, "fact": "{key} {value}", "question": "{key}", "answer": "{value}"}
    given = configured(evaluation={"needle": needle})
    assert "values: [red, blue]" in configuration_text(given)


def test_credentials_in_an_address_are_left_out() -> None:
    """The configuration refuses them; a command line may hold them all the same."""
    record = provenance(
        configured(), fingerprints={}, generated_at=datetime.now(UTC), command="gateau run s3://a:b@c/d e@f"
    )
    assert record.command == "gateau run s3://c/d e@f"


def test_versions_are_the_installed_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PACKAGES", ("torch", "no-such-package"))
    assert package_versions() == {"torch": version("torch"), "no-such-package": "not installed"}


def test_record() -> None:
    when = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    record = provenance(configured(), fingerprints={"b": "2", "a": "1"}, generated_at=when)
    assert record.generated_at == "2026-01-02 03:04:05 UTC"
    assert record.fingerprints == [("a", "1"), ("b", "2")]
    assert record.command is None
    assert record.python.startswith("CPython 3.")


@pytest.mark.parametrize(
    ("options", "phrase"),
    [
        ({}, "fraction (10 %)"),
        ({"fraction": 0.325}, "fraction (32.5 %)"),
        ({"count": 4300}, "count (4,300)"),
        ({"count": 9, "per_document": 2}, "count (9), at most 2 of a document"),
        ({"rule": "token_budget", "budget": 2_000_000}, "a budget of 2,000,000 tokens"),
        ({"rule": "per_source", "count": 9}, "count (9), each source its share"),
        ({"rule": "per_source_tokens", "budget": 7}, "a budget of 7 tokens, the same percentage of every source"),
        (
            {"rule": "diverse", "encoder": "e", "per_cluster": 2},
            "fraction (10 %), and the 2 best of every cluster besides",
        ),
    ],
)
def test_the_rule(options: dict[str, Any], phrase: str) -> None:
    assert chosen_by(SelectionConfig(**options)) == phrase


def test_the_rule_that_auto_took_is_named() -> None:
    auto = SelectionConfig(rule="auto", budget=500, per_document=2)
    assert chosen_by(auto) == "a budget of 500 tokens, as the forecast decides, at most 2 of a document"
    taken = "a budget of 500 tokens, drawn at random (rule clean, which auto took), at most 2 of a document"
    assert chosen_by(auto, "clean") == taken
    assert chosen_by(auto, "clean", far=0.25) == f"{taken}; 25 % of the chosen samples depend on far text"
    assert chosen_by(SelectionConfig(), "top") == chosen_by(SelectionConfig())


def test_the_preset_is_named_where_it_counts() -> None:
    assert ranked_by(SelectionConfig(preset="paper")) == "Method gateau, preset paper, α = 0.8"
    assert ranked_by(SelectionConfig(alpha=0.25)) == "Method gateau, preset robust, α = 0.25"
    assert ranked_by(SelectionConfig(method="ladm")) == "Method ladm"


def test_the_models_behind_the_scores_are_named() -> None:
    paths = {"short": "a/short", "long": "a/long"}
    cases: list[tuple[dict[str, Any], list[str]]] = [
        ({"method": "length"}, []),
        ({"method": "perplexity"}, ["long"]),
        ({"method": "ladm", "compare": ["random"]}, ["long"]),
        ({"method": "far_gain_fg"}, ["short", "long"]),
        ({"method": "length", "compare": ["gateau"]}, ["short", "long"]),
        ({"method": "random", "rule": "token_budget", "budget": 9}, ["long"]),
    ]
    for options, models in cases:
        assert scored_by(configured(selection=options)) == [(name, paths[name]) for name in models], options
