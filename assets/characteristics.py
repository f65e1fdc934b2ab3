"""Make the assets `characteristics` and `sample_ratings`: a judge's ratings of the best and worst samples, or all."""

from functools import partial

import polars as pl

from gateau_dagster.assets.steps.metadata import amounts_chart
from gateau_dagster.assets.steps.step import Output, Step, makes_asset
from gateau_dagster.estimate.judging import rated_samples, shards_cost, token_counter, wanted_of_shard
from gateau_dagster.evaluation.judging.characteristics import (
    BEST,
    WORST,
    characteristics_table,
    mean_ratings,
    parse,
    ratings_table,
)
from gateau_dagster.evaluation.judging.cost import check_affordable, cost_sentence, planned_cost
from gateau_dagster.evaluation.judging.judge_answers import judge_answers
from gateau_dagster.evaluation.judging.replies import Replies
from gateau_dagster.evaluation.page import PageAmount, PageChart
from gateau_dagster.execution.shard_tables import rejected_frame
from gateau_dagster.pipeline.evaluation_assets import rated_characteristics
from gateau_dagster.progress import Progress
from gateau_dagster.resources.judge import JudgeResource


@makes_asset
def characteristics(step: Step, judge: JudgeResource) -> None:
    """Rate the samples at both ends of the ranking; reuse kept replies."""
    for output in step.in_turn():
        _rate(output, judge)


@makes_asset
def sample_ratings(step: Step, judge: JudgeResource) -> None:
    """Rate every sample, shard by shard; reuse kept replies."""
    state, settings = step.state, step.state.config.evaluation.judge
    if not step.stale or settings is None:
        return
    replies, shards = Replies(state.store.files, settings.model), [str(output.partition) for output in step.stale]
    planned = shards_cost(state, settings, replies, token_counter(state.config), shards)
    check_affordable(settings, replies.spent, planned)
    server, named = judge.judge(settings), rated_characteristics(state.config)
    sizes = state.store.stamps(("raw_long_sft", shard) for shard in shards).values()
    total, before = len(named) * settings.repeats * sum(stamp.rows or 0 for stamp in sizes if stamp), 0
    for output in step.in_turn():
        wanted = wanted_of_shard(state, settings, str(output.partition))
        judged = judge_answers(wanted, parse, server, replies, settings, partial(_shown, step.progress, before, total))
        before += len(wanted)
        samples = state.read("raw_long_sft", ["sample_id"], output.partition)["sample_id"].to_list()
        table, unrated = ratings_table(samples, judged, named)
        output.write(table, rejected_frame(unrated), absent=judged.unanswered, computed=len(samples))
        output.metadata["paid"] = cost_sentence(settings, judged.new)


def _shown(
    progress: Progress, before: int, whole: int, done: float, total: float | None, unit: str, note: str = ""
) -> None:
    """Report a shard's progress as part of the progress over all shards."""
    del total
    progress(before + done, whole, unit, note)


def _rate(output: Output, judge: JudgeResource) -> None:
    state, settings = output.state, output.state.config.evaluation.judge
    assert settings is not None
    parts, wanted = rated_samples(state, settings)
    replies = Replies(state.store.files, settings.model)
    planned = planned_cost(settings, [each.asked for each in wanted], replies, token_counter(state.config))
    check_affordable(settings, replies.spent, planned)
    judged = judge_answers(wanted, parse, judge.judge(settings), replies, settings, output.progress)
    table = characteristics_table(parts, judged.table)
    output.write(table, rejected_frame(judged.rejected), absent=judged.unanswered)
    output.metadata["paid"] = cost_sentence(settings, judged.new)
    means = mean_ratings(table)
    output.metadata |= amounts_chart(_chart(means))
    for name, best, worst in means.select("characteristic", BEST, WORST).iter_rows():
        output.metadata[name] = f"best {best}, worst {worst}"


def _chart(means: pl.DataFrame) -> PageChart:
    """Return the chart of mean ratings, with the worst samples as the reference."""
    amounts = [
        PageAmount(name=f"{name} {part}", value=mean, reference=part == WORST)
        for name, *found in means.select("characteristic", BEST, WORST).iter_rows()
        for part, mean in zip((BEST, WORST), found, strict=True)
        if mean is not None
    ]
    return PageChart(name="mean rating", amounts=amounts)
