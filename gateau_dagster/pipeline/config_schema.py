"""Describe the configuration file as a JSON schema, with the options of every method and benchmark."""

from typing import Any, Literal

from pydantic import Field, create_model
from pydantic.json_schema import GenerateJsonSchema

from gateau_dagster.config.base import Section
from gateau_dagster.config.evaluation import EvaluationConfig
from gateau_dagster.config.schema import Config
from gateau_dagster.config.selection import SelectionConfig
from gateau_dagster.evaluation.registry import all_benchmarks
from gateau_dagster.methods.registry import all_methods

_DERIVED = ("folder", "name")
"""Fields of Config that follow from the file's place."""


def configuration_schema() -> dict[str, Any]:
    """Return the JSON schema (draft 2020-12) of gateau.yaml: types, defaults, limits and descriptions of all keys.

    Methods and benchmarks of installed packages are included; those of `selection.plugins` are not. The schema is
    narrower than a program can be: checks across sections stay with `gateau validate`.
    """
    methods, benchmarks = all_methods(), all_benchmarks()
    options: dict[str, Any] = {
        name: (method.options_class, Field(default=None, description=f"Options of {name}: {method.title}."))
        for name, method in methods.items()
    }
    # A name may also come from selection.plugins.
    method_name: Any = Literal[tuple(methods)] | str  # pyright: ignore[reportInvalidTypeForm]
    benchmark_name: Any = Literal[tuple(benchmarks)] | str  # pyright: ignore[reportInvalidTypeForm]
    sections: dict[str, Any] = {
        each: (benchmark.options_class, Field(default=None, description=f"Benchmark {each}: {benchmark.title}."))
        for each, benchmark in benchmarks.items()
    }
    selection = create_model(
        "SelectionConfig",
        __base__=SelectionConfig,
        __doc__=SelectionConfig.__doc__,
        method=(method_name, SelectionConfig.model_fields["method"]),
        compare=(_lists(method_name), SelectionConfig.model_fields["compare"]),
        options=(create_model("MethodOptions", __base__=Section, **options), SelectionConfig.model_fields["options"]),
    )
    sections["benchmarks"] = (_lists(benchmark_name) | None, EvaluationConfig.model_fields["benchmarks"])
    evaluation = create_model(
        "EvaluationConfig",
        __base__=EvaluationConfig,
        __doc__=EvaluationConfig.__doc__,
        **sections,
    )
    whole = create_model(
        "Configuration",
        __base__=Config,
        selection=(selection, Config.model_fields["selection"]),
        evaluation=(evaluation, Config.model_fields["evaluation"]),
    )
    schema = whole.model_json_schema()
    for field in _DERIVED:
        schema["properties"].pop(field)
    described = {"title": "gateau-dagster", "description": "The configuration file of gateau-dagster."}
    return {"$schema": GenerateJsonSchema.schema_dialect, **schema, **described}


def _lists(item: Any) -> Any:
    """Return the type of lists of a type that is made at runtime."""
    return list[item]
