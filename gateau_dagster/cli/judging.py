"""What a plan says of judging: requests, tokens and money, and whether the servers can be asked."""

from collections.abc import Iterator, Sequence
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from gateau_dagster.cli.display import as_line
from gateau_dagster.config.judge import JudgeConfig
from gateau_dagster.errors import GateauError
from gateau_dagster.estimate.judging import PlannedJudging, passing_budget, planned_judging, total_cost
from gateau_dagster.estimate.servers import check_servers
from gateau_dagster.evaluation.judging.cost import PlannedCost
from gateau_dagster.pipeline.plan import Plan
from gateau_dagster.pipeline.state import State
from gateau_dagster.readable import indented_lines


def show_judging(out: Console, state: State, plan: Plan) -> None:
    """One row a benchmark that is to be judged, and one for rated samples; what the figures mean that need it; a line
    where a server cannot be asked, or not for so much, or maybe not for so much.
    """
    settings, planned = state.config.evaluation.judge, planned_judging(state, plan)
    if settings is not None and planned:
        _show(out, planned, settings)
        for line in _grounds(planned):
            out.print(f"[dim]{as_line(line)}[/dim]", soft_wrap=False)
    if said := _refusal(state, plan, planned) or passing_budget(state, planned):
        out.print(f"[yellow]![/yellow] {escape(indented_lines(said))}", soft_wrap=False)


def _show(out: Console, planned: Sequence[PlannedJudging], settings: JudgeConfig) -> None:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("to judge")
    for column in ("requests", "kept", "tokens", "cost"):
        table.add_column(column, justify="right")
    for each in planned:
        table.add_row(each.of, *_figures(each.cost, each.most, settings))
    total, most = total_cost(each.cost for each in planned), total_cost(each.most for each in planned)
    if len(planned) > 1 and total is not None:
        table.add_row("together", *_figures(total, most, settings), style="bold")
    out.print()
    out.print(table)


def _grounds(planned: Sequence[PlannedJudging]) -> Iterator[str]:
    if any(each.cost != each.most for each in planned):
        yield (
            "The first figure: what may come out as before does, and its judgments are kept. The second: none of it "
            "does. Only answers that differ are judged again."
        )
    if any(each.cost is not None and each.cost.usage.requests for each in planned):
        yield (
            "Equal answers are judged once, so that it may be less; a reply without a score that is asked for again is "
            "not counted here."
        )


def judging_record(state: State, plan: Plan) -> dict[str, Any]:
    """For programs. benchmarks: what is asked, by their names and for `characteristics`; `most`: where nothing comes
    out as before. refused: why nothing would be sent, or empty. warning: that it may be more than the budget, or empty.
    """
    planned = planned_judging(state, plan)
    return {
        "benchmarks": {each.of: _record(each) for each in planned},
        "refused": _refusal(state, plan, planned),
        "warning": passing_budget(state, planned),
    }


def _record(planned: PlannedJudging) -> dict[str, Any]:
    known = planned.most is not None
    return {
        "variants": [*planned.variants],
        **_amounts(planned.cost),
        **({"most": _amounts(planned.most)} if known else {}),
    }


def _amounts(cost: PlannedCost | None) -> dict[str, Any]:
    if cost is None:
        return {"tokens": {}}
    tokens = {"prompt": cost.usage.prompt_tokens, "reply": cost.usage.reply_tokens}
    return {"kept": cost.kept, "requests": cost.usage.requests, "money": cost.money, "tokens": tokens}


def _figures(cost: PlannedCost | None, most: PlannedCost | None, settings: JudgeConfig) -> list[str]:
    """Requests, kept replies, tokens and money; where something may come out as before, from what to what."""
    if cost is None or most is None:
        return ["not known yet", "", "", ""]
    ends = [cost] if cost == most else [cost, most]
    texts = [[f"{each.usage.requests:,}" for each in ends], [f"{each.kept:,}" for each in ends]]
    texts.append([f"{each.usage.prompt_tokens + each.usage.reply_tokens:,}" for each in ends])
    texts.append([f"{each.money:,.2f}" for each in ends if each.money is not None])
    columns = [" to ".join(dict.fromkeys(each)) for each in texts]
    return [*columns[:3], f"{columns[3]} {settings.currency}" if columns[3] else ""]


def _refusal(state: State, plan: Plan, planned: Sequence[PlannedJudging]) -> str:
    try:
        check_servers(state, plan, planned)
    except GateauError as error:
        return str(error)
    return ""
