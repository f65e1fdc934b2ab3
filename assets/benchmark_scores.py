"""Make the assets `scores/<benchmark>`: the score of each question, from a variant's answers or a measurement."""

from collections.abc import Sequence
from dataclasses import replace
from functools import cache, partial
from typing import Any

import polars as pl

from gateau_dagster import tables
from gateau_dagster.assets.steps.compared_models import asked_questions, materials
from gateau_dagster.assets.steps.metadata import amounts_chart
from gateau_dagster.assets.steps.step import Output, Step, makes_asset
from gateau_dagster.evaluation.benchmark import Benchmark, Measured, MeasuredBenchmark, Question, QuestionBenchmark
from gateau_dagster.evaluation.grading import graded_answers, thoughts_sentence
from gateau_dagster.evaluation.judged import RatedBenchmark
from gateau_dagster.evaluation.page import PageAmount, PageChart
from gateau_dagster.evaluation.registry import scored_benchmarks
from gateau_dagster.execution.shard_tables import rejected_frame
from gateau_dagster.pipeline.evaluation_assets import ANSWERS, JUDGMENTS
from gateau_dagster.resources.models import ModelsResource


@makes_asset
def benchmark_scores(step: Step, models: ModelsResource) -> None:
    """Grade the answers of each stale variant, or measure the variant itself."""
    questions, kept = cache(partial(asked_questions, step, models)), dict[str, Any]()
    for output in step.in_turn():
        chosen = scored_benchmarks(step.state.config)[output.name]
        if isinstance(chosen, MeasuredBenchmark):
            given = materials(step.state, output.asset, models, output.progress)
            measured = chosen.measure(replace(given, kept=kept), output.variant.name)
        else:
            assert isinstance(chosen, QuestionBenchmark), "one of the two ways"
            measured = _graded(output, chosen, questions())
        _write(output, chosen, measured)


def _write(output: Output, chosen: Benchmark, measured: Measured) -> None:
    table = measured.table.select(tables.schema(tables.SCORES).names()).sort("question_id")
    assert table["question_id"].is_unique().all(), f"{output.asset}: a question has two values"
    unmeasured = [each.sample_id for each in measured.rejected if each.may_pass]
    output.write(table, rejected_frame(measured.rejected), absent=unmeasured)
    groups = table.group_by("group").agg(pl.col("value").mean()).sort("group")
    output.metadata |= {"questions": table.height, "unit": chosen.unit}
    amounts = [PageAmount(name=group, value=mean) for group, mean in groups.iter_rows()]
    output.metadata |= amounts_chart(PageChart(name=f"mean by group ({chosen.unit})", amounts=amounts))
    output.metadata["mean_by_group"] = dict(groups.iter_rows())


def _graded(output: Output, chosen: QuestionBenchmark, questions: Sequence[Question]) -> Measured:
    state, variant = output.state, output.variant.name
    answers, thoughts = state.read(f"{ANSWERS}/{chosen.name}", partition=variant), state.config.evaluation.thoughts
    if said := thoughts_sentence(answers["answer"], thoughts):
        output.metadata["thoughts"] = said
        output.context.log.info(f"{variant}: {said}")
    rated = isinstance(chosen, RatedBenchmark)
    judgments = state.read(f"{JUDGMENTS}/{chosen.name}", partition=variant) if rated else None
    return chosen.grade(questions, graded_answers(answers, thoughts), judgments)
