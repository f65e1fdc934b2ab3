"""Declare the tables that models compute, and the models that the pipeline trains itself, with their mixes."""

from collections.abc import Iterator
from functools import partial
from typing import Any

from gateau_dagster import tables
from gateau_dagster.config import Config
from gateau_dagster.config.base import Result, without_effect
from gateau_dagster.config.made_models import machine_settings, place_of, stage_training
from gateau_dagster.errors import GateauError
from gateau_dagster.methods.pre_experience import instruction_embedding_table
from gateau_dagster.models.chat_rendering import rendering_settings
from gateau_dagster.models.model_facts import short_window
from gateau_dagster.pipeline.asset import (
    FINITE_VALUES,
    FULL_COVERAGE,
    REJECTED_SHARE,
    SHARD,
    TRUNCATED_SHARE,
    UNIQUE_IDS,
    Asset,
    Observe,
    Observed,
    made_asset,
    model_key,
    origin_key,
)
from gateau_dagster.pipeline.feature import features
from gateau_dagster.scoring.pair_tables import WINDOW_SETTINGS
from gateau_dagster.scoring.sample_table import SampleTable
from gateau_dagster.selection.clusters import cluster_count
from gateau_dagster.storage.stamp import By, fingerprint
from gateau_dagster.training.deepspeed_config import agreed_deepspeed_config
from gateau_dagster.training.launch import CODE_VERSION as TRAINING_CODE_VERSION
from gateau_dagster.training.training_mix import CODE_VERSION as MIX_CODE_VERSION

# They decide what fits into memory; a batch that does not fit is halved, whatever its size.
_MEMORY_SETTINGS = {"device", "device_map", "workers"}


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
    return dict(zip(WINDOW_SETTINGS, (config.models["short"].context, short_window(config)), strict=True))


def memory_settings(config: Config) -> str:
    """Return a digest of the settings that decide what fits into memory; they change no result."""
    settings, ray = config.scoring.model_dump(include=_MEMORY_SETTINGS), config.execution.ray
    if ray is not None:
        settings["ray"] = ray.model_dump(include={"gpus", "cpus"})
    return fingerprint(settings)


def made_upstream(config: Config, model: str) -> dict[str, By]:
    """Return the inputs of a reader of this model: the model's asset, by content, if the pipeline makes it."""
    return {} if config.models[model].base is None else {made_asset(config, model): "content"}


def mix_asset(config: Config, model: str) -> str:
    """Return the asset with the tokenised data that this model is trained on: samples of the data, or long texts."""
    return f"{'homologous_mix' if config.models[model].is_homologous else 'pre_experience_mix'}/{model}"


def embedding_asset(config: Config, model: str) -> str:
    """Return the embedding table by which the samples for this model are chosen."""
    return instruction_embedding_table(config.origin(model)).asset


def made_models(config: Config) -> Iterator[Asset]:
    """Declare the mix and the folder of every model that is made: `pre_experience_mix/<model>` and
    `pre_experienced/<model>`, or those of a feature.
    """
    for name in config.made_models:
        if name in config.pre_experienced_models:
            yield from (_pre_experience_mix(config, name), _pre_experienced(config, name))
        for feature in features():
            yield from feature.made_model(config, name)


def _pre_experience_mix(config: Config, name: str) -> Asset:
    def settings(observed: Observed) -> dict[str, Any]:
        return {
            **base_weights(config, name, observed),
            **_stage_options(config, name, "mix"),
            "scoring.template": config.scoring.template,
            **rendering_settings(config.scoring.template, observed.frame(config.origin(name))),
            "training.max_length": config.training.max_length,
            "training.truncation": config.training.truncation,
        }

    return Asset(
        key=mix_asset(config, name),
        of="model",
        maker="pre_experience_mix",
        group="scoring",
        kinds=("scikit-learn", "huggingface"),
        summary="training mix of a pre-experienced model: samples of every cluster of instructions, tokenised",
        description=f"The training mix of `{name}` before it scores (Cherry Selection): some samples of every cluster "
        "of instructions, tokenised. It covers the whole data set and waits for all shards.",
        inputs=(origin_key(config, name),),
        reads=dict.fromkeys(("raw_long_sft", embedding_asset(config, name)), "fingerprint"),
        observe=settings,
        code_version=f"2.{MIX_CODE_VERSION}",
        columns=tables.TRAINING_MIX,
        checks=(REJECTED_SHARE, TRUNCATED_SHARE),
    )


def _pre_experienced(config: Config, name: str) -> Asset:
    base = config.origin(name)

    def settings(observed: Observed) -> dict[str, Any]:
        return {
            **base_weights(config, name, observed),
            f"models.{base}.rope_theta": config.models[base].rope_theta,
            **_stage_options(config, name, "checkpoint"),
            **machine_part(config, name),
        }

    return model_folder_asset(
        config,
        name,
        summary="a model trained on samples of every kind before it scores, a Hugging Face folder",
        how="trained on samples of every kind before it scores (Cherry Selection)",
        observe=settings,
    )


def model_folder_asset(config: Config, name: str, *, summary: str, how: str, observe: Observe) -> Asset:
    """Declare the folder of a model. `how`: the way it was made from its base."""
    return Asset(
        key=made_asset(config, name),
        of="model",
        maker="trained_model",
        group="scoring",
        kinds=("pytorch", "huggingface", "deepspeed"),
        summary=summary,
        description=f"The model `{name}`: `{config.origin(name)}`, {how}; a Hugging Face folder. As with "
        "`checkpoint`, a killed training run continues.",
        inputs=(origin_key(config, name),),
        reads={mix_asset(config, name): "content"},
        observe=observe,
        code_version=f"1.{TRAINING_CODE_VERSION}",
        folder=True,
        own_rejects=False,
        pool="gpu",
    )


def machine_part(config: Config, name: str) -> dict[str, Any]:
    """Return the settings that fit the machine, from `training`."""
    found: dict[str, Any] = machine_settings(config.training)
    del found["training.max_length"], found["training.truncation"]  # they count by what they make of the mix
    # The content of the file counts, not its name.
    found["training.deepspeed"] = agreed_deepspeed_config(
        stage_training(config.models[name], config.training),
        folder=config.folder,
        place=partial(place_of, name, config.models[name]),
    )
    return found


def base_weights(config: Config, name: str, observed: Observed) -> dict[str, Any]:
    """Return the digest of the weights that this model is made from, by its place in the configuration."""
    base = config.origin(name)
    return {f"models.{base} weights": observed.model_digests[base]}


def _stage_options(config: Config, name: str, result: Result) -> dict[str, Any]:
    stage = config.models[name].pre_experience
    assert stage is not None
    dumped = stage.model_dump(mode="json", exclude=without_effect(stage, result))
    return {f"models.{name}.pre_experience.{option}": value for option, value in dumped.items()}


def check_clusters(config: Config, samples: int) -> None:
    """Raise GateauError, before any model runs, if there are fewer `samples` than clusters to train a model on."""
    for name in config.pre_experienced_models:
        stage = config.models[name].pre_experience
        assert stage is not None
        try:
            cluster_count(samples, stage.clusters)
        except GateauError as error:
            raise error.reworded(f"models.{name}.pre_experience.clusters: {error}") from error
