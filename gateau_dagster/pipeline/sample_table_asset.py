"""Declare a table that a model computes, and the settings of its fingerprint and scorer."""

from typing import Any

from gateau_dagster.config import Config
from gateau_dagster.models.chat_rendering import rendering_settings
from gateau_dagster.models.known_model import short_window
from gateau_dagster.pipeline.asset import (
    FINITE_VALUES,
    FULL_COVERAGE,
    REJECTED_SHARE,
    SHARD,
    TRUNCATED_SHARE,
    UNIQUE_IDS,
    Asset,
    Observed,
)
from gateau_dagster.pipeline.inputs import model_key
from gateau_dagster.pipeline.made_models import made_upstream
from gateau_dagster.scoring.sample_table import SampleTable
from gateau_dagster.storage.stamp import By, fingerprint

# The first set decides what fits into memory; a batch that does not fit is halved, whatever its size.
_MEMORY_SETTINGS = {"device", "device_map", "workers"}
OPERATIONAL_SCORING = _MEMORY_SETTINGS | {"batch_tokens", "compile"}


def sample_table_asset(config: Config, table: SampleTable) -> Asset:
    """Declare one table; its rows are kept while what computes them stays the same."""
    model = config.models[table.model]
    made: dict[str, By] = made_upstream(config, table.model)
    return Asset(
        key=table.asset,
        of=table.of,
        maker="sample_table",
        partitions=SHARD,
        group="scoring",
        kinds=("pytorch", "huggingface"),
        summary=table.summary,
        description=f"{table.description} Computed with `{table.model}`: {model.path}.",
        inputs=() if made else (model_key(table.model),),
        reads={"raw_long_sft": "fingerprint", **made},
        observe=lambda observed: row_settings(config, table, observed),
        code_version=table.code_version,
        columns=table.columns,
        finite=table.finite,
        checks=_checks(table),
        pool="gpu",
        table=table,
        model=next(iter(made), ""),
        means=memory_settings(config),
    )


# Columns for the share of truncated tokens: tokens of a prompt's context, or of a text.
_CUT = ({"context_tokens", "truncated_tokens"}, {"tokens", "truncated_tokens"})


def _checks(table: SampleTable) -> tuple[str, ...]:
    finite = (FINITE_VALUES,) if table.finite else ()
    names = {column.name for column in table.columns}
    truncated = (TRUNCATED_SHARE,) if any(names >= cut for cut in _CUT) else ()
    return (UNIQUE_IDS, *finite, FULL_COVERAGE, REJECTED_SHARE, *truncated)


def row_settings(config: Config, table: SampleTable, observed: Observed) -> dict[str, Any]:
    """Return the settings of the model, as far as the table's rows read the prompt, and of the table itself.

    A model that the pipeline makes counts by the table's upstream instead.
    """
    name = table.model
    model, scoring, section = config.models[name], config.scoring, f"models.{name}"
    frame = rendering_settings(scoring.template, observed.frame(config.origin(name)))
    causal, prompted = model.task == "causal", table.prompt != "none"
    return {
        **({f"{section} weights": observed.model_digests[name]} if model.base is None else {}),
        f"{section}.rope_theta": model.rope_theta,
        **({f"{section}.context": model.context} if causal else {}),
        **({f"{section}.opening": model.opening} if table.prompt == "opened" else {}),
        # A model that reads a text as a whole is limited to its window, whatever `context` is.
        f"{section}.window": model.window if model.context == "window" or not causal else None,
        "scoring.max_length": scoring.max_length,
        **({"scoring.template": scoring.template, **frame} if prompted else {}),
        "scoring.dtype": scoring.dtype,
        **(_visible_settings(config) if table.needs_visible_window else {}),
        **table.settings,
    }


def _visible_settings(config: Config) -> dict[str, Any]:
    """Return the settings that decide which segments are far."""
    return {"models.short.context": config.models["short"].context, "models.short.window": short_window(config)}


def memory_settings(config: Config) -> str:
    """Return a digest of the settings that decide what fits into memory; they change no result."""
    settings, ray = config.scoring.model_dump(include=_MEMORY_SETTINGS), config.execution.ray
    if ray is not None:
        settings["ray"] = ray.model_dump(include={"gpus", "cpus"})
    return fingerprint(settings)
