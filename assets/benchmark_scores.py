"""Make the assets `scores/<benchmark>`: the score of each question, from a variant's answers or a measurement."""

from collections.abc import Iterator

import dagster as dg
import polars as pl

from assets.steps.compared_models import materials
from assets.steps.definition import makes_asset
from assets.steps.metadata import amounts_chart
from assets.steps.partitioned_step import Event
from assets.steps.step_questions import StepQuestions
from assets.steps.variant_step import VariantStep, variant_events
from gateau_dagster.evaluation.benchmark import Measured
from gateau_dagster.evaluation.grading import graded_answers, thoughts_sentence
from gateau_dagster.evaluation.page import PageAmount, PageChart
from gateau_dagster.execution.shard_tables import rejected_frame
from gateau_dagster.pipeline.variant_assets import ANSWERS, JUDGMENTS
from resources.configuration import ConfigurationResource
from resources.models import ModelsResource


@makes_asset
def benchmark_scores(
    context: dg.AssetExecutionContext, configuration: ConfigurationResource, models: ModelsResource
) -> Iterator[Event]:
    """Grade the answers of each stale variant, or measure the variant itself."""
    asked = StepQuestions(models)
    yield from variant_events(context, configuration, lambda step: _score(step, asked, models))


def _score(step: VariantStep, asked: StepQuestions, models: ModelsResource) -> None:
    chosen = asked.chosen(step)
    measured = _measured(step, asked, models)
    table = measured.table.sort("question_id")
    assert table["question_id"].is_unique().all(), f"{step.asset}: a question has two values"
    unmeasured = [each.sample_id for each in measured.rejected if each.may_pass]
    step.write(table, rejected_frame(measured.rejected), absent=unmeasured)
    groups = table.group_by("group").agg(pl.col("value").mean()).sort("group")
    step.metadata |= {"questions": table.height, "unit": chosen.scored.unit}
    amounts = [PageAmount(name=group, value=mean) for group, mean in groups.iter_rows()]
    step.metadata |= amounts_chart(PageChart(name=f"mean by group ({chosen.scored.unit})", amounts=amounts))
    step.metadata["mean_by_group"] = dict(groups.iter_rows())


def _measured(step: VariantStep, asked: StepQuestions, models: ModelsResource) -> Measured:
    chosen, state, variant = asked.chosen(step), step.state, step.variant.name
    scored = chosen.scored
    if scored.measure is not None:
        return scored.measure(materials(state, step.asset, models, step.progress), variant, chosen.options)
    assert scored.grade is not None, "one of the two ways"
    answers, thoughts = state.read(f"{ANSWERS}/{chosen.name}", partition=variant), state.config.evaluation.thoughts
    if said := thoughts_sentence(answers["answer"], thoughts):
        step.metadata["thoughts"] = said
        step.context.log.info(f"{variant}: {said}")
    judgments = state.read(f"{JUDGMENTS}/{chosen.name}", partition=variant) if scored.judging is not None else None
    return scored.grade(asked.questions(step), graded_answers(answers, thoughts), judgments, chosen.options)
