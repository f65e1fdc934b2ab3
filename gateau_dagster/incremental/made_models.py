"""The models that the pipeline makes itself, as the planner sees them: what they are trained on, and what came out."""

from collections.abc import Mapping

from gateau_dagster.config import Config
from gateau_dagster.config.made_models import machine_settings
from gateau_dagster.errors import GateauError
from gateau_dagster.incremental.code_versions import CODE_VERSIONS
from gateau_dagster.incremental.node import Node
from gateau_dagster.methods.pre_experience import instruction_embedding_table
from gateau_dagster.selection.clusters import cluster_count
from gateau_dagster.training.deepspeed_config import deepspeed_config

MADE_FAMILY = "pre_experienced"
MIX_FAMILY = "pre_experience_mix"
# Of the stage's options, those that decide what is trained on; the others decide how.
_OF_THE_MIX = {"clusters", "per_cluster", "pick", "seed"}
_ONLY_OF_THE_MIX = _OF_THE_MIX - {"seed"}


def made_asset(model: str) -> str:
    """The asset that is this model: a folder in the store."""
    return f"{MADE_FAMILY}/{model}"


def mix_asset(model: str) -> str:
    """The samples that this model is trained on, tokenised."""
    return f"{MIX_FAMILY}/{model}"


def embedding_asset(config: Config, model: str) -> str:
    """The table that the samples are chosen by."""
    return instruction_embedding_table(config.origin(model)).asset


def made_model_nodes(config: Config, digests: Mapping[str, str]) -> list[Node]:
    """`pre_experience_mix/<model>` and `pre_experienced/<model>` of every model that is made.

    Raises GateauError when the file that training.deepspeed names cannot be read.
    """
    return [node for name in config.made_models for node in (_mix(config, name, digests), _made(config, name, digests))]


def _mix(config: Config, name: str, digests: Mapping[str, str]) -> Node:
    return Node(
        asset=mix_asset(name),
        partitioned=False,
        upstream=dict.fromkeys(("raw_long_sft", embedding_asset(config, name)), "fingerprint"),
        settings={
            **_base(config, name, digests),
            **_options(config, name, only=_OF_THE_MIX),
            "scoring.template": config.scoring.template,
            "training.max_length": config.training.max_length,
        },
        code_version=CODE_VERSIONS[MIX_FAMILY],
    )


def _made(config: Config, name: str, digests: Mapping[str, str]) -> Node:
    """By content: a choice that comes out the same trains nothing, and the rows that this model scored stay."""
    base = config.origin(name)
    machine = machine_settings(config.training)
    del machine["training.max_length"]  # it counts by what it makes of the mix
    if isinstance(config.training.deepspeed, str):  # what a file says counts, not what it is called
        machine["training.deepspeed"] = deepspeed_config(config.training.deepspeed, folder=config.folder)
    return Node(
        asset=made_asset(name),
        partitioned=False,
        upstream={mix_asset(name): "content"},
        settings={
            **_base(config, name, digests),
            f"models.{base}.rope_theta": config.models[base].rope_theta,
            **_options(config, name, without=_ONLY_OF_THE_MIX),
            **machine,
        },
        code_version=CODE_VERSIONS[MADE_FAMILY],
    )


def _base(config: Config, name: str, digests: Mapping[str, str]) -> dict[str, str]:
    base = config.origin(name)
    return {f"models.{base} weights": digests[base]}


def _options(
    config: Config, name: str, *, only: set[str] | None = None, without: set[str] | None = None
) -> dict[str, object]:
    stage = config.models[name].pre_experience
    assert stage is not None
    dumped = stage.model_dump(mode="json", include=only, exclude=without)
    return {f"models.{name}.pre_experience.{option}": value for option, value in dumped.items()}


def check_clusters(config: Config, samples: int) -> None:
    """Raises GateauError when there are fewer `samples` than clusters to train a model on: known before any runs."""
    for name in config.made_models:
        stage = config.models[name].pre_experience
        assert stage is not None
        try:
            cluster_count(samples, stage.clusters)
        except GateauError as error:
            raise GateauError(f"models.{name}.pre_experience.clusters: {error}") from error
