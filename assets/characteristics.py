"""Make the assets `characteristics` and `sample_ratings`: a judge's ratings of the best and worst samples, or all."""

from collections.abc import Iterator, Mapping
from functools import partial

import dagster as dg
import polars as pl

from assets.steps.definition import makes_asset
from assets.steps.metadata import amounts_chart
from assets.steps.partitioned_step import Event, Finished, shard_events, stale_partitions
from assets.steps.step import asset_step
from assets.steps.unpartitioned_step import UnpartitionedStep, unpartitioned_step
from gateau_dagster.config.judge import JudgeConfig
from gateau_dagster.estimate.characteristics import rated_samples, shards_cost, wanted_of_shard
from gateau_dagster.estimate.judging import token_counter
from gateau_dagster.evaluation.benchmark import Judging
from gateau_dagster.evaluation.judging.characteristics import (
    BEST,
    WORST,
    characteristics_table,
    mean_ratings,
    parse,
    ratings_table,
)
from gateau_dagster.evaluation.judging.cost import check_affordable, cost_sentence, planned_cost
from gateau_dagster.evaluation.judging.judge_answers import Judged, judge_answers
from gateau_dagster.evaluation.judging.replies import Replies
from gateau_dagster.evaluation.page import PageAmount, PageChart
from gateau_dagster.execution.shard_tables import ShardResult, rejected_frame
from gateau_dagster.methods.judge import SAMPLE_RATINGS
from gateau_dagster.pipeline.characteristics_asset import rated_characteristics
from gateau_dagster.pipeline.state import State
from gateau_dagster.progress import Progress
from gateau_dagster.storage import Stamp
from resources.configuration import ConfigurationResource
from resources.judge import JudgeResource


@makes_asset
def characteristics(
    context: dg.AssetExecutionContext, configuration: ConfigurationResource, judge: JudgeResource
) -> dg.MaterializeResult:
    """Rate the samples at both ends of the ranking; reuse kept replies."""
    with unpartitioned_step(context, configuration) as step:
        if step.is_stale:
            _rate(step, judge)
    return step.result


@makes_asset
def sample_ratings(
    context: dg.AssetExecutionContext, configuration: ConfigurationResource, judge: JudgeResource
) -> Iterator[Event]:
    """Rate every sample, shard by shard; reuse kept replies."""
    with asset_step(context, configuration) as progress:
        state = configuration.state()
        stale = stale_partitions(context, state, SAMPLE_RATINGS)
        yield from shard_events(context, state, {SAMPLE_RATINGS: stale}, _rated(state, judge, stale, progress))


def _rated(state: State, judge: JudgeResource, stale: Mapping[str, Stamp], progress: Progress) -> Iterator[Finished]:
    settings = state.config.evaluation.judge
    if not stale or settings is None:
        return
    replies = Replies(state.store.files, settings.model)
    planned = shards_cost(state, settings, replies, token_counter(state.config), stale)
    check_affordable(settings, replies.spent, planned)
    server = judge.judge(settings)
    sizes = state.store.stamps(("raw_long_sft", shard) for shard in stale).values()
    each = len(rated_characteristics(state.config)) * settings.repeats
    total, before = each * sum(stamp.rows or 0 for stamp in sizes if stamp), 0
    for shard, stamp in stale.items():
        wanted = wanted_of_shard(state, settings, shard)
        judging = Judging(requests=lambda *_: [], parse=parse)
        shown = partial(_shown, progress, before, total)
        judged = judge_answers(wanted, judging, server, replies, settings, shown)
        before += len(wanted)
        yield SAMPLE_RATINGS, shard, *_written(state, settings, shard, stamp, judged)


def _shown(
    progress: Progress, before: int, whole: int, done: float, total: float | None, unit: str, note: str = ""
) -> None:
    """Report a shard's progress as part of the progress over all shards."""
    del total
    progress(before + done, whole, unit, note)


def _written(
    state: State, settings: JudgeConfig, shard: str, stamp: Stamp, judged: Judged
) -> tuple[ShardResult, dict[str, object]]:
    samples = state.read("raw_long_sft", ["sample_id"], shard)["sample_id"].to_list()
    table, unrated = ratings_table(samples, judged, rated_characteristics(state.config))
    rejected = rejected_frame(unrated)
    stamp = stamp.without(judged.unanswered, state.asset(SAMPLE_RATINGS).means)
    complete = state.store.write(table, SAMPLE_RATINGS, shard, stamp, rejected)
    result = ShardResult(table=table, rejected=rejected, computed=len(samples), reused=0, stamp=complete)
    return result, {"paid": cost_sentence(settings, judged.new)}


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
    step.write(table, rejected_frame(judged.rejected), absent=judged.unanswered)
    step.metadata["paid"] = cost_sentence(settings, judged.new)
    means = mean_ratings(table)
    step.metadata |= amounts_chart(_chart(means))
    for name, best, worst in means.select("characteristic", BEST, WORST).iter_rows():
        step.metadata[name] = f"best {best}, worst {worst}"


def _chart(means: pl.DataFrame) -> PageChart:
    """Return the chart of mean ratings, with the worst samples as the reference."""
    amounts = [
        PageAmount(name=f"{name} {part}", value=mean, reference=part == WORST)
        for name, *found in means.select("characteristic", BEST, WORST).iter_rows()
        for part, mean in zip((BEST, WORST), found, strict=True)
        if mean is not None
    ]
    return PageChart(name="mean rating", amounts=amounts)
