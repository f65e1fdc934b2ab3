"""A configuration for the tests of methods, and the scores of one from tables that a test made."""

from collections.abc import Mapping
from typing import Any

import polars as pl

from gateau_dagster.config import Config
from gateau_dagster.methods.method import Method
from gateau_dagster.methods.registry import chosen_methods
from gateau_dagster.pipeline.project import check_project


def configured(
    *, models: dict[str, Any] | None = None, scoring: dict[str, Any] | None = None, **selection: Any
) -> Config:
    """A project with this `selection` and `scoring`, and these models beside the pair.

    Raises:
        ValueError: the project's checks find that it lacks something.
    """
    pair = {"short": {"path": "a/short", "context": "window", "window": 64}, "long": {"path": "a/long"}}
    content = {"long_sft": {"path": "long.jsonl"}, "models": pair | (models or {}), "selection": selection}
    content["scoring"] = scoring or {}
    config = Config.model_validate(content)
    check_project(config)
    return config


def method_of(
    name: str, *, options: dict[str, Any] | None = None, models: dict[str, Any] | None = None, **selection: Any
) -> Method:
    """The method under a configuration that chooses it; raises as `configured`."""
    return chosen_methods(configured(models=models, method=name, options={name: options or {}}, **selection))[name]


def scores_of(
    name: str, stored: Mapping[str, pl.DataFrame], *, options: dict[str, Any] | None = None, **selection: Any
) -> dict[str, Any]:
    """The method's score of each sample, by sample_id; it is given the columns that it says it reads, and no others."""
    method = method_of(name, options=options, **selection)
    found = method.scores({asset: stored[asset].select(columns) for asset, columns in method.reads().items()})
    assert found.schema == {"sample_id": pl.String, "score": pl.Float64} and found["sample_id"].is_sorted()
    return dict(found.iter_rows())
