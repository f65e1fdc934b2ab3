"""What a plan says of the judge: requests, tokens and money, and whether they are within the budget."""

from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from gateau_dagster.config.judge import JudgeConfig
from gateau_dagster.estimate.judging import PlannedJudging, check_budget, planned_judging, total_cost
from gateau_dagster.evaluation.judging.cost import BudgetError, PlannedCost
from gateau_dagster.pipeline.plan import Plan
from gateau_dagster.pipeline.state import State


def show_judging(out: Console, state: State, plan: Plan) -> None:
    """One row a benchmark, and a line where it is more than the budget; nothing where nothing is to be judged."""
    settings, planned = state.config.evaluation.judge, planned_judging(state, plan)
    if settings is None or not planned:
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("to judge")
    for column in ("requests", "kept", "tokens", "cost"):
        table.add_column(column, justify="right")
    for each in planned:
        table.add_row(each.benchmark, *_figures(each.cost, settings))
    total = total_cost(planned)
    if len(planned) > 1 and total is not None:
        table.add_row("together", *_figures(total, settings), style="bold")
    out.print()
    out.print(table)
    if refused := _refusal(state, planned):
        out.print(f"[yellow]![/yellow] {escape(refused)}", soft_wrap=False)


def judging_record(state: State, plan: Plan) -> dict[str, Any]:
    """For programs: by benchmark what is asked, and `refused`: why nothing would be sent, or empty."""
    planned = planned_judging(state, plan)
    return {"benchmarks": {each.benchmark: _record(each) for each in planned}, "refused": _refusal(state, planned)}


def _record(planned: PlannedJudging) -> dict[str, Any]:
    cost = planned.cost
    figures = {} if cost is None else {"kept": cost.kept, "requests": cost.usage.requests, "money": cost.money}
    tokens = {} if cost is None else {"prompt": cost.usage.prompt_tokens, "reply": cost.usage.reply_tokens}
    return {"variants": [*planned.variants], **figures, "tokens": tokens}


def _figures(cost: PlannedCost | None, settings: JudgeConfig) -> list[str]:
    if cost is None:
        return ["not known yet", "", "", ""]
    usage = cost.usage
    money = "" if cost.money is None else f"{cost.money:,.2f} {settings.currency}"
    return [f"{usage.requests:,}", f"{cost.kept:,}", f"{usage.prompt_tokens + usage.reply_tokens:,}", money]


def _refusal(state: State, planned: Sequence[PlannedJudging]) -> str:
    try:
        check_budget(state, planned)
    except BudgetError as error:
        return str(error)
    return ""
