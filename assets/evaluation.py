"""Make the assets `evaluation/<benchmark>`: the checkpoint compared with its base model."""

from assets.steps.compared_models import materials
from assets.steps.metadata import amounts_chart, figures_metadata
from assets.steps.step import Step, makes_asset
from gateau_dagster.evaluation.registry import FAMILY, compared_benchmarks
from gateau_dagster.execution.shard_tables import rejected_frame
from resources.models import ModelsResource


@makes_asset
def evaluation(step: Step, models: ModelsResource) -> None:
    """Run one benchmark on the base model and the checkpoint."""
    for output in step.in_turn():
        chosen = compared_benchmarks(output.state.config)[output.asset.removeprefix(f"{FAMILY}/")]
        outcome = chosen.run(materials(output.state, output.asset, models, output.progress))
        output.write(outcome.table, rejected_frame(outcome.rejected))
        section = chosen.section(outcome.table)
        if section.chart is not None:
            output.metadata |= amounts_chart(section.chart)
        output.metadata |= figures_metadata({figure.name: figure.draw() for figure in section.figures})
