"""Make the assets `pairwise/<benchmark>`: two variants' answers compared by a judge, in both orders."""

from collections.abc import Sequence

from gateau_dagster.assets.steps.compared_models import materials
from gateau_dagster.assets.steps.metadata import amounts_chart, name_of
from gateau_dagster.assets.steps.step import Output, Step, makes_asset
from gateau_dagster.estimate.judging import PlannedBenchmark, token_counter
from gateau_dagster.evaluation.judged import verdict
from gateau_dagster.evaluation.judging.cost import check_affordable, cost_sentence, planned_cost
from gateau_dagster.evaluation.judging.judge_answers import judge_answers
from gateau_dagster.evaluation.judging.pairwise import Tally, pairwise_table, tallies, wanted_of
from gateau_dagster.evaluation.judging.replies import Replies
from gateau_dagster.evaluation.page import PageAmount, PageChart
from gateau_dagster.execution.shard_tables import rejected_frame
from gateau_dagster.pipeline.evaluation_assets import PAIRS
from gateau_dagster.readable import fixed, percent
from gateau_dagster.resources.judge import JudgeResource
from gateau_dagster.resources.models import ModelsResource


@makes_asset
def pairwise(step: Step, models: ModelsResource, judge: JudgeResource) -> None:
    """Compare the configured pairs; reuse kept replies."""
    for output in step.in_turn():
        _compare(output, models, judge)


def _compare(output: Output, models: ModelsResource, judge: JudgeResource) -> None:
    state, settings = output.state, output.state.config.evaluation.judge
    assert settings is not None
    name = output.asset.removeprefix(f"{PAIRS}/")
    benchmark = PlannedBenchmark.of(state, name, materials(state, output.asset, models, output.progress))
    matches = benchmark.matches(state)
    wanted, replies = wanted_of(matches), Replies(state.store.files, settings.model)
    planned = planned_cost(settings, [each.asked for each in wanted], replies, token_counter(state.config))
    check_affordable(settings, replies.spent, planned)
    judged = judge_answers(wanted, verdict, judge.judge(settings), replies, settings, output.progress)
    table = pairwise_table(matches, judged.table)
    output.write(table, rejected_frame(judged.rejected), absent=judged.unanswered)
    output.metadata["paid"] = cost_sentence(settings, judged.new)
    found = tallies(table)
    output.metadata |= amounts_chart(_chart(found))
    for each in found:
        output.metadata[name_of(f"{each.one} against {each.other}")] = (
            f"{each.wins} won, {each.ties} tied, {each.losses} lost, {each.unreadable} unreadable; the same in both "
            f"orders {percent(each.consistent)}, preference for the first place {fixed(each.bias)}"
        )


def _chart(found: Sequence[Tally]) -> PageChart:
    """Return the chart of the share won; a share of one half is a draw."""
    amounts = [
        PageAmount(name=f"{each.one} over {each.other}", value=(each.wins + each.ties / 2) / read)
        for each in found
        if (read := each.wins + each.ties + each.losses)
    ]
    return PageChart(name="share won, ties half", amounts=amounts, share=True)
