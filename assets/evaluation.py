"""Make the assets `evaluation/<benchmark>`: the checkpoint compared with its base model."""

import dagster as dg

from assets.steps.compared_models import materials
from assets.steps.definition import makes_asset
from assets.steps.metadata import amounts_chart, figures_metadata
from assets.steps.unpartitioned_step import unpartitioned_step
from gateau_dagster.evaluation.registry import FAMILY, compared_benchmarks
from gateau_dagster.execution.shard_tables import rejected_frame
from resources.configuration import ConfigurationResource
from resources.models import ModelsResource


@makes_asset
def evaluation(
    context: dg.AssetExecutionContext, configuration: ConfigurationResource, models: ModelsResource
) -> dg.MaterializeResult:
    """Run one benchmark on the base model and the checkpoint."""
    with unpartitioned_step(context, configuration) as step:
        if step.is_stale:
            chosen = compared_benchmarks(step.state.config)[step.asset.removeprefix(f"{FAMILY}/")]
            outcome = chosen.run(materials(step.state, step.asset, models, step.progress))
            step.write(outcome.table, rejected_frame(outcome.rejected))
            section = chosen.section(outcome.table)
            if section.chart is not None:
                step.metadata |= amounts_chart(section.chart)
            step.metadata |= figures_metadata({figure.name: figure.draw() for figure in section.figures})
    return step.result
