"""Make the assets `evaluation/<benchmark>`: the checkpoint compared with its base model."""

from dataclasses import replace

from gateau_dagster.assets.steps.compared_models import materials
from gateau_dagster.assets.steps.metadata import amounts_chart, figures_metadata
from gateau_dagster.assets.steps.step import Step, makes_asset
from gateau_dagster.evaluation.benchmark import MODELS, Materials, Measured, MeasuredBenchmark
from gateau_dagster.evaluation.registry import FAMILY, compared_benchmarks
from gateau_dagster.execution.shard_tables import rejected_frame
from gateau_dagster.resources.models import ModelsResource


@makes_asset
def evaluation(step: Step, models: ModelsResource) -> None:
    """Run one benchmark on the base model and the checkpoint."""
    for output in step.in_turn():
        chosen = compared_benchmarks(output.state.config)[output.asset.removeprefix(f"{FAMILY}/")]
        given = materials(output.state, output.asset, models, output.progress)
        compared = chosen.compare(measured_models(chosen, given))
        output.write(compared.table, rejected_frame(compared.rejected))
        section = chosen.section(compared.table)
        if section.chart is not None:
            output.metadata |= amounts_chart(section.chart)
        output.metadata |= figures_metadata({figure.name: figure.draw() for figure in section.figures})


def measured_models(chosen: MeasuredBenchmark, given: Materials) -> dict[str, Measured]:
    """Return what the benchmark measures of MODELS, and report the progress of each as a part of the whole."""

    def measured(place: int) -> Measured:
        def progress(done: float, total: float | None, unit: str, note: str = "") -> None:
            whole = None if total is None else total * len(MODELS)
            given.progress(done + place * (total or 0), whole, unit, note)

        return chosen.measure(replace(given, progress=progress), MODELS[place])

    return {name: measured(place) for place, name in enumerate(MODELS)}
