"""Make the assets `scores/<benchmark>`: the score of each question, from a variant's answers or a measurement."""

from collections.abc import Sequence
from functools import cache, partial

import polars as pl

from assets.steps.compared_models import asked_questions, materials
from assets.steps.metadata import amounts_chart
from assets.steps.step import Output, Step, makes_asset
from gateau_dagster.evaluation.benchmark import Measured, Question
from gateau_dagster.evaluation.grading import graded_answers, thoughts_sentence
from gateau_dagster.evaluation.page import PageAmount, PageChart
from gateau_dagster.evaluation.registry import ChosenBenchmark, scored_benchmarks
from gateau_dagster.execution.shard_tables import rejected_frame
from gateau_dagster.pipeline.variant_assets import ANSWERS, JUDGMENTS
from resources.models import ModelsResource


@makes_asset
def benchmark_scores(step: Step, models: ModelsResource) -> None:
    """Grade the answers of each stale variant, or measure the variant itself."""
    questions = cache(partial(asked_questions, step, models))
    for output in step.in_turn():
        chosen = scored_benchmarks(step.state.config)[output.name]
        measure = chosen.scored.measure
        if measure is not None:
            given = materials(step.state, output.asset, models, output.progress)
            _write(output, chosen, measure(given, output.variant.name, chosen.options))
        else:
            _write(output, chosen, _graded(output, chosen, questions()))


def _write(output: Output, chosen: ChosenBenchmark, measured: Measured) -> None:
    table = measured.table.sort("question_id")
    assert table["question_id"].is_unique().all(), f"{output.asset}: a question has two values"
    unmeasured = [each.sample_id for each in measured.rejected if each.may_pass]
    output.write(table, rejected_frame(measured.rejected), absent=unmeasured)
    groups = table.group_by("group").agg(pl.col("value").mean()).sort("group")
    output.metadata |= {"questions": table.height, "unit": chosen.scored.unit}
    amounts = [PageAmount(name=group, value=mean) for group, mean in groups.iter_rows()]
    output.metadata |= amounts_chart(PageChart(name=f"mean by group ({chosen.scored.unit})", amounts=amounts))
    output.metadata["mean_by_group"] = dict(groups.iter_rows())


def _graded(output: Output, chosen: ChosenBenchmark, questions: Sequence[Question]) -> Measured:
    state, variant, scored = output.state, output.variant.name, chosen.scored
    assert scored.grade is not None, "one of the two ways"
    answers, thoughts = state.read(f"{ANSWERS}/{chosen.name}", partition=variant), state.config.evaluation.thoughts
    if said := thoughts_sentence(answers["answer"], thoughts):
        output.metadata["thoughts"] = said
        output.context.log.info(f"{variant}: {said}")
    judgments = state.read(f"{JUDGMENTS}/{chosen.name}", partition=variant) if scored.judging is not None else None
    return scored.grade(questions, graded_answers(answers, thoughts), judgments, chosen.options)
