"""The summary's phrase names the rule that was really used."""

from typing import Any

import pytest

from gateau_dagster.config import SelectionConfig
from gateau_dagster.report.provenance import chosen_by, ranked_by, scored_by
from tests.methods.configured import configured


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
        assert scored_by(configured(**options)) == [(name, paths[name]) for name in models], options
