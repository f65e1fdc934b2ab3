"""Describe the configuration file as a JSON schema, with the options of every method and benchmark."""

from typing import Any, Literal

from pydantic import Field, create_model
from pydantic.json_schema import GenerateJsonSchema

from gateau_dagster.config.base import Section
from gateau_dagster.config.evaluation import EvaluationConfig
from gateau_dagster.config.schema import Config
from gateau_dagster.config.selection import OwnScores, SelectionConfig
from gateau_dagster.evaluation.registry import all_benchmarks
from gateau_dagster.methods.registry import all_methods


def configuration_schema() -> dict[str, Any]:
    """Return the JSON schema (draft 2020-12) of gateau.yaml: types, defaults, limits and descriptions of all keys.

    The schema is narrower than a program can be: checks across sections stay with `gateau validate`.
    """
    whole = configuration_model()
    schema = whole.model_json_schema()
    for name, field in whole.model_fields.items():
        if field.exclude:  # it follows from the file's place
            schema["properties"].pop(name)
    described = {"title": "gateau-dagster", "description": "The configuration file of gateau-dagster."}
    return {"$schema": GenerateJsonSchema.schema_dialect, **schema, **described}


def configuration_model() -> type[Config]:
    """Return the configuration with a field for the options of every method and benchmark.

    Methods and benchmarks of installed packages are included; those of `selection.plugins` are not.
    """
    methods, benchmarks = all_methods(), all_benchmarks()
    options: dict[str, Any] = {
        name: (method.options_class, Field(default=None, description=f"Options of {name}. {method.title}"))
        for name, method in methods.items()
    }
    # A name may also come from selection.plugins.
    method_name: Any = Literal[tuple(methods)] | str  # pyright: ignore[reportInvalidTypeForm]
    method_or_file: Any = method_name | OwnScores
    benchmark_name: Any = Literal[tuple(benchmarks)] | str  # pyright: ignore[reportInvalidTypeForm]
    sections: dict[str, Any] = {
        each: (benchmark.options_class(), Field(default=None, description=f"Benchmark {each}: {benchmark.title}."))
        for each, benchmark in benchmarks.items()
    }
    selection = create_model(
        "SelectionConfig",
        __base__=SelectionConfig,
        __doc__=SelectionConfig.__doc__,
        method=(method_or_file, SelectionConfig.model_fields["method"]),
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
    return create_model(
        "Configuration",
        __base__=Config,
        selection=(selection, Config.model_fields["selection"]),
        evaluation=(evaluation, Config.model_fields["evaluation"]),
    )


def _lists(item: Any) -> Any:
    """Return the type of lists of a type that is made at runtime."""
    return list[item]
