"""The models that the pipeline makes itself, as the planner sees them: what they are trained on, and what came out."""

from collections.abc import Mapping
from functools import partial

from gateau_dagster.config import Config
from gateau_dagster.config.made_models import homologous_options, machine_settings, place_of, stage_training
from gateau_dagster.errors import GateauError
from gateau_dagster.methods.pre_experience import instruction_embedding_table
from gateau_dagster.pipeline.code_versions import CODE_VERSIONS
from gateau_dagster.pipeline.node import Node
from gateau_dagster.selection.clusters import cluster_count
from gateau_dagster.storage.stamp import By
from gateau_dagster.training.deepspeed_agreement import agreed_deepspeed_config

MADE_FAMILY = "pre_experienced"
MIX_FAMILY = "pre_experience_mix"
HOMOLOGOUS_FAMILY = "homologous_model"
TEXT_MIX_FAMILY = "homologous_mix"
MADE_FAMILIES = {MADE_FAMILY, HOMOLOGOUS_FAMILY}
# Of the stage's options, those that decide what is trained on; the others decide how.
_OF_THE_MIX = {"clusters", "per_cluster", "pick", "seed"}
_ONLY_OF_THE_MIX = _OF_THE_MIX - {"seed"}
# The same of a homologous model's; which files are meant counts by what is in them.
_OF_THE_TEXT_MIX = {"text_field", "long_share", "length", "least_tokens", "tokens", "seed"}
_ONLY_OF_THE_TEXT_MIX = (_OF_THE_TEXT_MIX | {"texts", "short_texts"}) - {"length", "seed"}


def made_asset(config: Config, model: str) -> str:
    """The asset that is this model: a folder in the store."""
    return f"{HOMOLOGOUS_FAMILY if config.models[model].is_homologous else MADE_FAMILY}/{model}"


def made_upstream(config: Config, model: str) -> dict[str, By]:
    """What reads a model reads the asset that it is, where the pipeline makes it: by content."""
    return {} if config.models[model].base is None else {made_asset(config, model): "content"}


def mix_asset(config: Config, model: str) -> str:
    """What this model is trained on, tokenised: samples of the data, or long texts."""
    return f"{TEXT_MIX_FAMILY if config.models[model].is_homologous else MIX_FAMILY}/{model}"


def embedding_asset(config: Config, model: str) -> str:
    """The table that the samples are chosen by."""
    return instruction_embedding_table(config.origin(model)).asset


def made_model_nodes(
    config: Config, digests: Mapping[str, str], text_signatures: Mapping[str, str] | None = None
) -> list[Node]:
    """The mix and the folder of every model that is made: `pre_experience_mix/<model>` and `pre_experienced/<model>`,
    or `homologous_mix/<model>` and `homologous_model/<model>`.

    Args:
        config: of the pipeline.
        digests: see `model_digest`, for every configured model.
        text_signatures: of each homologous model, changes with the texts that it is trained on.

    Raises:
        GateauError: the file that training.deepspeed names cannot be read, or contradicts how a model is made.
    """
    nodes: list[Node] = []
    for name in config.made_models:
        if config.models[name].is_homologous:
            assert text_signatures is not None, "the planner looks at the texts"
            mix, options = _text_mix(config, name, digests, text_signatures[name]), _recipe(config, name)
        else:
            mix, options = _sample_mix(config, name, digests), _options(config, name, without=_ONLY_OF_THE_MIX)
        nodes += [mix, _made(config, name, digests, options)]
    return nodes


def _sample_mix(config: Config, name: str, digests: Mapping[str, str]) -> Node:
    return Node(
        asset=mix_asset(config, name),
        partitioned=False,
        upstream=dict.fromkeys(("raw_long_sft", embedding_asset(config, name)), "fingerprint"),
        settings={
            **_base(config, name, digests),
            **_options(config, name, only=_OF_THE_MIX),
            "scoring.template": config.scoring.template,
            "training.max_length": config.training.max_length,
            "training.truncation": config.training.truncation,
        },
        code_version=CODE_VERSIONS[MIX_FAMILY],
    )


def _text_mix(config: Config, name: str, digests: Mapping[str, str], signature: str) -> Node:
    section = f"models.{name}.homologous"
    dumped = homologous_options(config.models[name]).model_dump(mode="json", include=_OF_THE_TEXT_MIX)
    return Node(
        asset=mix_asset(config, name),
        partitioned=False,
        settings={
            **_base(config, name, digests),
            **{f"{section}.{option}": value for option, value in dumped.items()},
            f"{section} files": signature,
        },
        code_version=CODE_VERSIONS[TEXT_MIX_FAMILY],
    )


def _recipe(config: Config, name: str) -> dict[str, object]:
    """How a homologous model is trained; passes of which process count by what they come to."""
    options = homologous_options(config.models[name])
    dumped = options.model_dump(mode="json", exclude=_ONLY_OF_THE_TEXT_MIX)
    dumped["positions"] = options.extension.model_dump(mode="json")
    return {f"models.{name}.homologous.{option}": value for option, value in dumped.items()}


def _made(config: Config, name: str, digests: Mapping[str, str], options: Mapping[str, object]) -> Node:
    """By content: a choice that comes out the same trains nothing, and the rows that this model scored stay."""
    base = config.origin(name)
    machine = machine_settings(config.training)
    del machine["training.max_length"], machine["training.truncation"]  # they count by what they make of the mix
    if config.models[name].is_homologous:
        del machine["training.sequence_parallel"]  # it is made without
    # What a file comes to counts, not what it is called.
    machine["training.deepspeed"] = agreed_deepspeed_config(
        stage_training(config.models[name], config.training),
        folder=config.folder,
        place=partial(place_of, name, config.models[name]),
    )
    # A homologous model's rotary embedding is extended from the one that the weights were trained with.
    theta = {} if config.models[name].is_homologous else {f"models.{base}.rope_theta": config.models[base].rope_theta}
    return Node(
        asset=made_asset(config, name),
        partitioned=False,
        upstream={mix_asset(config, name): "content"},
        settings={**_base(config, name, digests), **theta, **options, **machine},
        code_version=CODE_VERSIONS[HOMOLOGOUS_FAMILY if config.models[name].is_homologous else MADE_FAMILY],
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
    for name in config.pre_experienced_models:
        stage = config.models[name].pre_experience
        assert stage is not None
        try:
            cluster_count(samples, stage.clusters)
        except GateauError as error:
            raise GateauError(f"models.{name}.pre_experience.clusters: {error}") from error
