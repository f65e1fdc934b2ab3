"""Test which models are behind a selection."""

from typing import Any

from gateau_dagster.pipeline.selection_reads import scored_by
from tests.kit.project import configured


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
