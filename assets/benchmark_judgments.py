"""Make the assets `judgments/<benchmark>`: a judge's scores of each variant's answers."""

from typing import Any

import polars as pl

from gateau_dagster import tables
from gateau_dagster.assets.steps.compared_models import materials
from gateau_dagster.assets.steps.metadata import first_histogram, name_of
from gateau_dagster.assets.steps.step import Step, makes_asset
from gateau_dagster.config.judge import JudgeConfig
from gateau_dagster.estimate.judging import PlannedBenchmark, token_counter
from gateau_dagster.evaluation.judged import unreadable
from gateau_dagster.evaluation.judging.cost import check_affordable, money_of, planned_cost
from gateau_dagster.evaluation.judging.judge_answers import Judged, judge_answers
from gateau_dagster.evaluation.judging.replies import Replies
from gateau_dagster.execution.shard_tables import rejected_frame
from gateau_dagster.resources.judge import JudgeResource
from gateau_dagster.resources.models import ModelsResource


@makes_asset
def benchmark_judgments(step: Step, models: ModelsResource, judge: JudgeResource) -> None:
    """Judge the answers of the stale variants. Every reply is kept as it arrives, for later equal requests."""
    if not step.stale:
        return
    state, asset = step.state, step.stale[0]
    benchmark = PlannedBenchmark.of(state, asset.name, materials(state, asset.asset, models, step.progress))
    settings = benchmark.settings
    if settings is None:
        for output in step.in_turn():
            output.write(pl.DataFrame(schema=tables.schema(tables.JUDGMENTS)), rejected_frame([]))
        return
    replies = Replies(state.store.files, settings.model)
    # The budget has to suffice for all requests of the step before any money is spent; kept replies cost nothing.
    wanted = [each.asked for output in step.stale for each in benchmark.wanted(state, output.variant.name)]
    check_affordable(settings, replies.spent, planned_cost(settings, wanted, replies, token_counter(state.config)))
    asked = judge.judge(settings)
    for output in step.in_turn():
        wanted = benchmark.wanted(state, output.variant.name)
        parse, again = benchmark.chosen.parse, benchmark.chosen.again
        judged = judge_answers(wanted, parse, asked, replies, settings, output.progress, again=again)
        output.write(judged.table, rejected_frame(judged.rejected), absent=judged.unanswered)
        output.metadata |= _metadata(judged, settings)


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
