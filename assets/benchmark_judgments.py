"""Make the assets `judgments/<benchmark>`: a judge's scores of each variant's answers."""

from collections.abc import Iterator
from typing import Any

import dagster as dg
import polars as pl

from assets.steps.compared_models import materials
from assets.steps.definition import makes_asset
from assets.steps.metadata import first_histogram, name_of
from assets.steps.partitioned_step import Event
from assets.steps.partitions import asked_partitions
from assets.steps.variant_step import VariantStep, variant_events
from gateau_dagster import tables
from gateau_dagster.config.judge import JudgeConfig
from gateau_dagster.estimate.judging import JudgedBenchmark, token_counter
from gateau_dagster.evaluation.judged import unreadable
from gateau_dagster.evaluation.judging.cost import check_affordable, money_of, planned_cost
from gateau_dagster.evaluation.judging.judge_answers import Judged, judge_answers
from gateau_dagster.evaluation.judging.replies import Judge, Replies
from gateau_dagster.execution.shard_tables import rejected_frame
from gateau_dagster.pipeline.variant_assets import ANSWERS, JUDGMENTS
from resources.configuration import ConfigurationResource
from resources.judge import JudgeResource
from resources.models import ModelsResource


@makes_asset
def benchmark_judgments(
    context: dg.AssetExecutionContext,
    configuration: ConfigurationResource,
    models: ModelsResource,
    judge: JudgeResource,
) -> Iterator[Event]:
    """Judge the answers of the stale variants. Every reply is kept as it arrives, for later equal requests."""
    yield from variant_events(context, configuration, _Judgments(models, judge))


class _Judgments:
    """The judgments of one step, variant by variant."""

    def __init__(self, models: ModelsResource, judge: JudgeResource) -> None:
        self._models, self._resource = models, judge
        self._judge: Judge | None = None
        self._benchmark: JudgedBenchmark | None = None

    def __call__(self, step: VariantStep) -> None:
        state, name = step.state, step.asset.removeprefix(f"{JUDGMENTS}/")
        if self._benchmark is None:
            given = materials(state, step.asset, self._models, step.progress)
            self._benchmark = JudgedBenchmark.of(state, name, given)
        benchmark = self._benchmark
        wanted, settings = benchmark.wanted(state, step.variant.name), benchmark.settings
        if settings is None:
            step.write(pl.DataFrame(schema=tables.schema(tables.JUDGMENTS)), rejected_frame([]))
            return
        replies = Replies(state.store.files, settings.model)
        if self._judge is None:
            _check_budget(step, benchmark, settings, replies)
            self._judge = self._resource.judge(settings)
        judged = judge_answers(wanted, benchmark.judging, self._judge, replies, settings, step.progress)
        step.write(judged.table, rejected_frame(judged.rejected), absent=judged.unanswered)
        step.metadata |= _metadata(judged, settings)


def _check_budget(step: VariantStep, benchmark: JudgedBenchmark, settings: JudgeConfig, replies: Replies) -> None:
    """Check the budget for all requests of the step before any money is spent; kept replies cost nothing."""
    state = step.state
    answers = f"{ANSWERS}/{benchmark.chosen.name}"
    variants = asked_partitions(step.context, [*state.config.variant_set])
    answered = [name for name in variants if state.stamp(answers, name) is not None]
    wanted = [each.asked for name in answered for each in benchmark.wanted(state, name)]
    check_affordable(settings, replies.spent, planned_cost(settings, wanted, replies, token_counter(state.config)))


def _metadata(judged: Judged, settings: JudgeConfig) -> dict[str, Any]:
    """Return what this step paid, and how many judgments are unusable."""
    counted, money = unreadable(judged.table, rejected_frame(judged.rejected)), money_of(settings, judged.new)
    found = {
        "requests_paid": judged.new.requests,
        "prompt_tokens": judged.new.prompt_tokens,
        "reply_tokens": judged.new.reply_tokens,
        "without_score": counted.without_score,
        "unusable_share": counted.share,
    }
    found |= {} if money is None else {name_of(f"cost in {settings.currency}"): money}
    return found | first_histogram(judged.table)
