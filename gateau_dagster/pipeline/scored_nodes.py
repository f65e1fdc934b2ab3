"""The tables that models compute, as the planner sees them."""

from typing import Any

from gateau_dagster.config import Config
from gateau_dagster.models.visible_window import short_window
from gateau_dagster.pipeline.code_versions import CODE_VERSIONS
from gateau_dagster.pipeline.made_models import made_asset, made_upstream
from gateau_dagster.pipeline.node import Node
from gateau_dagster.scoring.sample_table import SampleTable, ShownPrompt
from gateau_dagster.storage.stamp import By, fingerprint


def _model_settings(config: Config, name: str, digest: str, *, prompt: ShownPrompt = "opened") -> dict[str, Any]:
    """What decides what a model makes of a sample; what a model is that is made, its upstream says.

    `prompt`: see SampleTable.
    """
    model, scoring, section = config.models[name], config.scoring, f"models.{name}"
    causal = model.task == "causal"
    return {
        **({f"{section} weights": digest} if model.base is None else {}),
        f"{section}.rope_theta": model.rope_theta,
        **({f"{section}.context": model.context} if causal else {}),
        **({f"{section}.opening": model.opening} if prompt == "opened" else {}),
        # A model that reads a text as a whole reads no more than its window, whatever `context` says.
        f"{section}.window": model.window if model.context == "window" or not causal else None,
        "scoring.max_length": scoring.max_length,
        **({"scoring.template": scoring.template} if prompt != "none" else {}),
        "scoring.dtype": scoring.dtype,
    }


def _upstream(config: Config, name: str) -> dict[str, By]:
    """What a table reads that this model computes."""
    return {"raw_long_sft": "fingerprint", **made_upstream(config, name)}


def _model_asset(config: Config, name: str) -> str:
    """See Node.model."""
    return "" if config.models[name].base is None else made_asset(config, name)


# Of these the first decide what fits into memory; a batch that does not fit is halved, whatever its size.
_MEMORY_SETTINGS = {"device", "device_map", "workers"}
OPERATIONAL_SCORING = _MEMORY_SETTINGS | {"batch_tokens", "compile"}


def _memory(config: Config) -> str:
    """The settings that decide what fits; they change no result."""
    return fingerprint(config.scoring.model_dump(include=_MEMORY_SETTINGS))


def perplexity_node(config: Config, name: str, digest: str) -> Node:
    """`perplexity/<name>`; `digest`: see `model_digest`."""
    settings, code = _model_settings(config, name, digest), CODE_VERSIONS["perplexity"]
    return Node(
        asset=f"perplexity/{name}",
        partitioned=True,
        upstream=_upstream(config, name),
        settings=settings,
        code_version=code,
        scorer=fingerprint({"code": code, **settings}),
        model=_model_asset(config, name),
        memory=_memory(config),
    )


def cam_node(config: Config, digest: str) -> Node:
    """`cam`; `digest` is that of theta_B."""
    settings = {
        **_model_settings(config, "long", digest),
        "scoring.segment_length": config.scoring.segment_length,
        **_sight_settings(config),
    }
    code = CODE_VERSIONS["cam"]
    return Node(
        asset="cam",
        partitioned=True,
        upstream=_upstream(config, "long"),
        settings=settings,
        code_version=code,
        scorer=fingerprint({"code": code, **settings}),
        model=_model_asset(config, "long"),
        memory=_memory(config),
    )


def _sight_settings(config: Config) -> dict[str, Any]:
    """What decides which segments are far."""
    return {"models.short.context": config.models["short"].context, "models.short.window": short_window(config)}


def sample_table_node(config: Config, table: SampleTable, digest: str) -> Node:
    """A table that a model computes for a method."""
    sight = _sight_settings(config) if table.needs_visible_window else {}
    settings = {**_model_settings(config, table.model, digest, prompt=table.prompt), **sight, **table.settings}
    return Node(
        asset=table.asset,
        partitioned=True,
        upstream=_upstream(config, table.model),
        settings=settings,
        code_version=table.code_version,
        scorer=fingerprint({"code": table.code_version, **settings}),
        model=_model_asset(config, table.model),
        memory=_memory(config),
    )
