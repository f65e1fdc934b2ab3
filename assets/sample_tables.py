"""Assets whose rows a model computes: `perplexity/<model>`, `cam`, and the tables that methods bring along."""

from collections.abc import Iterator

import dagster as dg

from assets.steps.definition import makes_asset
from assets.steps.partitioned_step import Event
from assets.steps.scoring_step import scored_shards
from resources.configuration import ConfigurationResource
from resources.models import ModelsResource


@makes_asset
def sample_table(
    context: dg.AssetExecutionContext, configuration: ConfigurationResource, models: ModelsResource
) -> Iterator[Event]:
    """One table of a model, or several that one pass serves; each alone, too."""
    yield from scored_shards(context, configuration, models)
