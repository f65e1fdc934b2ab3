"""What a plan says of trainings and of answers: how many, how much, and about how long."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Console

from gateau_dagster.cli.display import as_line
from gateau_dagster.cli.figures import left_table, time_range
from gateau_dagster.estimate.amount import Amount
from gateau_dagster.estimate.answers import planned_answers
from gateau_dagster.estimate.estimator import Estimator
from gateau_dagster.estimate.trainings import planned_trainings
from gateau_dagster.pipeline.plan import Plan
from gateau_dagster.pipeline.state import State


def planned_amounts(state: State, plan: Plan, estimator: Estimator) -> list[Amount]:
    """Trainings, then answers."""
    return [*planned_trainings(state, plan, estimator), *planned_answers(state, plan, estimator)]


def show_amounts(out: Console, planned: Sequence[Amount]) -> None:
    """One row an asset, and where the times come from; nothing where nothing is trained or asked."""
    if not planned:
        return
    table = left_table("to train, to ask", right=("models", "amount", "time"))
    for each in planned:
        amount = "unknown" if each.amount is None else f"{each.amount:,} {each.unit}"
        table.add_row(each.asset, f"{each.models:,}", amount, _time(each))
    out.print()
    out.print(table)
    grounds: dict[str, list[str]] = {}
    for each in planned:
        grounds.setdefault(each.grounds, []).append(each.asset)
    for why, assets in grounds.items():
        line = f"Time of {', '.join(assets)}: {why}."
        out.print(f"[dim]{as_line(line)}[/dim]", soft_wrap=False)


def amounts_record(planned: Sequence[Amount]) -> list[dict[str, Any]]:
    """For programs: the fields of Amount."""
    return [asdict(each) for each in planned]


def _time(planned: Amount) -> str:
    if planned.seconds_low is None or planned.seconds_high is None:
        return "unknown"
    return time_range(planned.seconds_low, planned.seconds_high)
