"""Assets `scores/<benchmark>`: what each variant's answers are worth, or what is measured of it."""

from collections.abc import Iterator

import dagster as dg
import polars as pl

from assets.steps.compared_models import materials
from assets.steps.definition import makes_asset
from assets.steps.partitioned_step import Event
from assets.steps.variant_step import VariantStep, variant_events
from gateau_dagster.evaluation.registry import ChosenBenchmark, scored_benchmarks
from gateau_dagster.evaluation.scored import Measured
from gateau_dagster.execution.shard_work import rejected_frame
from gateau_dagster.pipeline.variant_assets import ANSWERS, JUDGMENTS, SCORES
from resources.configuration import ConfigurationResource
from resources.models import ModelsResource


@makes_asset
def benchmark_scores(
    context: dg.AssetExecutionContext, configuration: ConfigurationResource, models: ModelsResource
) -> Iterator[Event]:
    """Grades the answers of each stale variant, or measures the variant itself."""
    yield from variant_events(context, configuration, lambda step: _score(step, models))


def _score(step: VariantStep, models: ModelsResource) -> None:
    chosen = scored_benchmarks(step.state.config)[step.asset.removeprefix(f"{SCORES}/")]
    measured = _measured(step, models, chosen)
    table = measured.table.sort("question_id")
    assert table["question_id"].is_unique().all(), f"{step.asset}: a question has two values"
    step.write(table, rejected_frame(measured.rejected))
    groups = table.group_by("group").agg(pl.col("value").mean()).sort("group")
    step.metadata |= {"questions": table.height, "unit": chosen.scored.unit}
    step.metadata["mean_by_group"] = dict(groups.iter_rows())


def _measured(step: VariantStep, models: ModelsResource, chosen: ChosenBenchmark) -> Measured:
    scored, state, variant = chosen.scored, step.state, step.variant.name
    given = materials(state, step.asset, models, step.progress)
    if scored.measure is not None:
        return scored.measure(given, variant, chosen.options)
    assert scored.questions is not None and scored.grade is not None, "one of the two ways"
    answers = state.read(f"{ANSWERS}/{chosen.name}", partition=variant)
    judgments = state.read(f"{JUDGMENTS}/{chosen.name}", partition=variant) if scored.judging is not None else None
    return scored.grade(scored.questions(given, chosen.options), answers, judgments, chosen.options)
