"""Declare the models that are made by continued training on texts, and check their bases."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from gateau_dagster import tables
from gateau_dagster.config import Config
from gateau_dagster.config.base import without_effect
from gateau_dagster.config.made_models import homologous_options
from gateau_dagster.data.sources import SourceFile
from gateau_dagster.features.text_mix.mix import CODE_VERSION, check_homologous, text_files, text_key
from gateau_dagster.pipeline.asset import REJECTED_SHARE, Asset, Observed, origin_key
from gateau_dagster.pipeline.feature import Feature, GivenFiles
from gateau_dagster.pipeline.scoring_assets import base_weights, machine_part, mix_asset, model_folder_asset


class HomologousModels(Feature):
    """Homologous models, which are trained on a mix of long and short texts."""

    def model_checks(self, config: Config) -> Iterator[Callable[[], object]]:
        """Yield the check of the bases and the mixes."""
        yield partial(check_homologous, config)

    def inputs(self, config: Config) -> Iterator[GivenFiles]:
        """Yield the texts of each model."""
        for name in config.homologous_models:
            options = homologous_options(config.models[name])
            given = [paths for paths in (options.texts, options.short_texts) if paths is not None]
            yield GivenFiles(
                key=text_key(name),
                place=f"models.{name}.homologous",
                paths=[path for paths in given for path in ([paths] if isinstance(paths, str) else paths)],
                summary=f"The texts that train `models.{name}`",
                files=partial(_files, config, name),
                version=partial(_version, name),
            )

    def made_model(self, config: Config, name: str) -> Iterator[Asset]:
        """Declare `homologous_mix/<model>` and `homologous_model/<model>`."""
        if name in config.homologous_models:
            yield from (_mix(config, name), _model(config, name))


def _files(config: Config, name: str) -> list[SourceFile]:
    return [file for files in text_files(config, name).values() for file in files]


def _version(name: str, observed: Observed) -> str:
    return observed.partitions[text_key(name)]


def _mix(config: Config, name: str) -> Asset:
    section = f"models.{name}.homologous"

    def settings(observed: Observed) -> dict[str, Any]:
        options = homologous_options(config.models[name])
        dumped = options.model_dump(mode="json", exclude=without_effect(options, "mix"))
        del dumped["texts"], dumped["short_texts"]  # the files count by their content
        return {
            **base_weights(config, name, observed),
            **{f"{section}.{option}": value for option, value in dumped.items()},
            f"{section} files": observed.partitions[text_key(name)],
        }

    return Asset(
        key=mix_asset(config, name),
        of="model",
        maker="homologous_mix",
        group="scoring",
        kinds=("parquet", "huggingface"),
        summary="training mix of a homologous model: long and short texts, tokenised",
        description="Long texts, and short ones by their share of tokens, tokenised and cut into sequences: what "
        f"`{config.origin(name)}` is trained on to become `{name}`.",
        inputs=(text_key(name), origin_key(config, name)),
        observe=settings,
        code_version=CODE_VERSION,
        columns=tables.TRAINING_MIX,
        # No limit loses tokens: a long text is cut into sequences, and `tokens` is the requested number.
        checks=(REJECTED_SHARE,),
    )


def _model(config: Config, name: str) -> Asset:
    def settings(observed: Observed) -> dict[str, Any]:
        machine = machine_part(config, name)
        del machine["training.sequence_parallel"]  # `tokens_per_step` decides which rows make up a step
        # No rope_theta: the rotary embedding is extended from the one that the weights were trained with.
        return {**base_weights(config, name, observed), **_recipe(config, name), **machine}

    return model_folder_asset(
        config,
        name,
        summary="a long model made from another by continued training, a Hugging Face folder",
        how="trained on with long texts and an extended rotary embedding until it reads further",
        observe=settings,
    )


def _recipe(config: Config, name: str) -> dict[str, Any]:
    """Return how a homologous model is trained; the position extension counts as resolved."""
    options = homologous_options(config.models[name])
    dumped = options.model_dump(mode="json", exclude=without_effect(options, "checkpoint"))
    dumped["positions"] = options.extension.model_dump(mode="json")
    return {f"models.{name}.homologous.{option}": value for option, value in dumped.items()}


FEATURE = HomologousModels()
