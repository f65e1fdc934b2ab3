"""Ask a judge: `judgments/<benchmark>`, `pairwise/<benchmark>`, `characteristics` and `sample_ratings`."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import polars as pl

from gateau_dagster import tables
from gateau_dagster.assets.steps.metadata import amounts_chart, first_histogram, name_of
from gateau_dagster.assets.steps.step import Output, Step, makes_asset
from gateau_dagster.execution.shard_tables import rejected_frame
from gateau_dagster.features.evaluation.assets.benchmarks import materials
from gateau_dagster.features.evaluation.assets.judge import JudgeResource
from gateau_dagster.features.evaluation.config import evaluation_of
from gateau_dagster.features.evaluation.judge_requests import (
    PlannedBenchmark,
    rated_samples,
    shards_cost,
    token_counter,
    wanted_of_shard,
)
from gateau_dagster.features.evaluation.judged import unreadable, verdict
from gateau_dagster.features.evaluation.judging.asking import check_affordable, cost_sentence, money_of, planned_cost
from gateau_dagster.features.evaluation.judging.characteristics import (
    BEST,
    WORST,
    characteristics_table,
    mean_ratings,
    parse,
    rated_characteristics,
    ratings_table,
)
from gateau_dagster.features.evaluation.judging.judge_answers import (
    Judged,
    JudgmentRequest,
    judge_answers,
    pairwise_table,
    partly_read_judgments,
    tallies,
    wanted_of,
)
from gateau_dagster.features.evaluation.judging.replies import Replies
from gateau_dagster.features.evaluation.servers import JudgeConfig
from gateau_dagster.progress import Progress
from gateau_dagster.readable import PageAmount, PageChart, fixed, percent
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
        output.warn("partly_read", partly_read_judgments(judged.table))


def _metadata(judged: Judged, settings: JudgeConfig) -> dict[str, Any]:
    """Return the usage that this step paid for, and the number of unusable judgments."""
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


@makes_asset
def pairwise(step: Step, models: ModelsResource, judge: JudgeResource) -> None:
    """Compare the configured pairs; reuse kept replies."""
    for output in step.in_turn():
        given = materials(output.state, output.asset, models, output.progress)
        matches = PlannedBenchmark.of(output.state, output.name, given).matches(output.state)
        table = _asked(output, judge, wanted_of(matches), verdict, partial(pairwise_table, matches))
        found, amounts = tallies(table), list[PageAmount]()
        for each in found:
            if read := each.wins + each.ties + each.losses:
                won = (each.wins + each.ties / 2) / read  # one half is a draw
                amounts.append(PageAmount(name=f"{each.one} over {each.other}", value=won))
        output.metadata |= amounts_chart(PageChart(name="share won, ties half", amounts=amounts, share=True))
        for each in found:
            output.metadata[name_of(f"{each.one} against {each.other}")] = (
                f"{each.wins} won, {each.ties} tied, {each.losses} lost, {each.unreadable} unreadable; the same in "
                f"both orders {percent(each.consistent)}, preference for the first place {fixed(each.bias)}"
            )


def _asked(
    output: Output,
    judge: JudgeResource,
    wanted: Sequence[JudgmentRequest],
    parse: Callable[[str], float | None],
    table_of: Callable[[pl.DataFrame], pl.DataFrame],
) -> pl.DataFrame:
    """Have all of this judged, if the budget allows; write and return the table made of the judgments."""
    state, settings = output.state, evaluation_of(output.state.config).judge
    assert settings is not None
    replies = Replies(state.store.files, settings.model)
    planned = planned_cost(settings, [each.asked for each in wanted], replies, token_counter(state.config))
    check_affordable(settings, replies.spent, planned)
    judged = judge_answers(wanted, parse, judge.judge(settings), replies, settings, output.progress)
    table = table_of(judged.table)
    output.write(table, rejected_frame(judged.rejected), absent=judged.unanswered)
    output.metadata["paid"] = cost_sentence(settings, judged.new)
    output.warn("partly_read", partly_read_judgments(judged.table))
    return table


@makes_asset
def characteristics(step: Step, judge: JudgeResource) -> None:
    """Rate the samples at both ends of the ranking; reuse kept replies."""
    for output in step.in_turn():
        settings = evaluation_of(output.state.config).judge
        assert settings is not None
        parts, wanted = rated_samples(output.state, settings)
        means = mean_ratings(_asked(output, judge, wanted, parse, partial(characteristics_table, parts)))
        figures, amounts = [*means.select("characteristic", BEST, WORST).iter_rows()], list[PageAmount]()
        for name, *found in figures:
            for part, mean in zip((BEST, WORST), found, strict=True):
                if mean is not None:
                    amounts.append(PageAmount(name=f"{name} {part}", value=mean, reference=part == WORST))
        output.metadata |= amounts_chart(PageChart(name="mean rating", amounts=amounts))
        output.metadata |= {name: f"best {best}, worst {worst}" for name, best, worst in figures}


@makes_asset
def sample_ratings(step: Step, judge: JudgeResource) -> None:
    """Rate every sample, shard by shard; reuse kept replies."""
    state, settings = step.state, evaluation_of(step.state.config).judge
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
        output.warn("partly_read", partly_read_judgments(judged.table))


def _shown(
    progress: Progress, before: int, whole: int, done: float, total: float | None, unit: str, note: str = ""
) -> None:
    del total
    progress(before + done, whole, unit, note)
