"""Asset `characteristics`: what a judge says of the best and the worst training samples."""

import dagster as dg
import polars as pl

from assets.steps.definition import makes_asset
from assets.steps.metadata import amounts_chart
from assets.steps.unpartitioned_step import UnpartitionedStep, unpartitioned_step
from gateau_dagster.estimate.characteristics import rated_samples
from gateau_dagster.estimate.judging import token_counter
from gateau_dagster.evaluation.judging.characteristics import (
    BEST,
    WORST,
    characteristics_table,
    mean_ratings,
    parse,
)
from gateau_dagster.evaluation.judging.cost import check_affordable, cost_sentence, planned_cost
from gateau_dagster.evaluation.judging.judge_answers import judge_answers
from gateau_dagster.evaluation.judging.replies import Replies
from gateau_dagster.evaluation.page import PageAmount, PageChart
from gateau_dagster.evaluation.scored import Judging
from gateau_dagster.execution.shard_tables import rejected_frame
from resources.configuration import ConfigurationResource
from resources.judge import JudgeResource


@makes_asset
def characteristics(
    context: dg.AssetExecutionContext, configuration: ConfigurationResource, judge: JudgeResource
) -> dg.MaterializeResult:
    """Rates the samples at both ends of the ranking; replies that are kept are not asked for again."""
    with unpartitioned_step(context, configuration) as step:
        if step.is_stale:
            _rate(step, judge)
    return step.result


def _rate(step: UnpartitionedStep, judge: JudgeResource) -> None:
    state, settings = step.state, step.state.config.evaluation.judge
    assert settings is not None
    parts, wanted = rated_samples(state, settings)
    replies = Replies(state.store.files, settings.model)
    planned = planned_cost(settings, [each.asked for each in wanted], replies, token_counter(state.config))
    check_affordable(settings, replies.spent, planned)
    judging = Judging(requests=lambda *_: [], parse=parse)
    judged = judge_answers(wanted, judging, judge.judge(settings), replies, settings, step.progress)
    table = characteristics_table(parts, judged.table)
    step.write(table, rejected_frame(judged.rejected))
    step.metadata["paid"] = cost_sentence(settings, judged.new)
    means = mean_ratings(table)
    step.metadata |= amounts_chart(_chart(means))
    for name, best, worst in means.select("characteristic", BEST, WORST).iter_rows():
        step.metadata[name] = f"best {best}, worst {worst}"


def _chart(means: pl.DataFrame) -> PageChart:
    """The worst samples are what the best ones are set against."""
    amounts = [
        PageAmount(name=f"{name} {part}", value=mean, reference=part == WORST)
        for name, *found in means.select("characteristic", BEST, WORST).iter_rows()
        for part, mean in zip((BEST, WORST), found, strict=True)
        if mean is not None
    ]
    return PageChart(name="mean rating", amounts=amounts)
