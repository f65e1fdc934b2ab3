"""Assets `perplexity/<model>` and `cam`: what the homologous models say of each sample."""

from collections.abc import Iterator

import dagster as dg

from assets.definition import partitioned_asset, partitioned_assets, partitioned_spec
from assets.partitioned_step import Event
from assets.scoring_step import scored_shards
from gateau_dagster import tables
from gateau_dagster.config import Config
from gateau_dagster.pipeline.made_models import made_upstream
from resources.configuration import ConfigurationResource
from resources.models import ModelsResource

# Models whose full pass over a sample serves another table too.
THETA_B = "long"
_ROLES = {"short": " (theta_A)", THETA_B: " (theta_B)"}
_KINDS = {"pytorch", "huggingface"}


def perplexity_asset(config: Config, model: str) -> dg.AssetsDefinition:
    """One for every configured model but the theta_B of a pair, which `theta_b_assets` covers."""

    @partitioned_asset(
        config,
        f"perplexity/{model}",
        columns=tables.PERPLEXITY,
        deps=["raw_long_sft", *made_upstream(config, model)],
        kinds=_KINDS,
        pool="gpu",
        description=_perplexity_description(config, model),
    )
    def perplexity(
        context: dg.AssetExecutionContext, configuration: ConfigurationResource, models: ModelsResource
    ) -> Iterator[Event]:
        yield from scored_shards(context, configuration, models, model)

    return perplexity


def theta_b_assets(config: Config) -> dg.AssetsDefinition:
    """`perplexity/long` and `cam` in one step, since one pass of theta_B over a sample gives both; each alone, too."""
    specs = [
        partitioned_spec(
            f"perplexity/{THETA_B}",
            columns=tables.PERPLEXITY,
            deps=["raw_long_sft", *made_upstream(config, THETA_B)],
            kinds=_KINDS,
            description=_perplexity_description(config, THETA_B),
        ),
        partitioned_spec(
            "cam",
            columns=tables.CAM,
            deps=["raw_long_sft", *made_upstream(config, THETA_B)],
            kinds=_KINDS,
            description="Contextual Awareness Measurement by theta_B: does the model attend to the segments that "
            "matter for the response? Segment perplexities, segment attention and their similarity CAS (Eq. 3-5).",
        ),
    ]

    @partitioned_assets(config, f"perplexity__{THETA_B}_and_cam", specs=specs, pool="gpu")
    def theta_b(
        context: dg.AssetExecutionContext, configuration: ConfigurationResource, models: ModelsResource
    ) -> Iterator[Event]:
        yield from scored_shards(context, configuration, models, THETA_B)

    return theta_b


def _perplexity_description(config: Config, model: str) -> str:
    role = _ROLES.get(model, "")
    return f"Perplexity of each response under `{model}`{role}: {config.models[model].path} (Eq. 1)."
