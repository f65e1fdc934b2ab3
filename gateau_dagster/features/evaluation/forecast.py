"""Show the requests of a plan's judging, and refuse a plan whose servers or questions cannot be used."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from rich.console import Console
from rich.markup import escape

from gateau_dagster.cli.display import explain_in_grey
from gateau_dagster.cli.plan import ASKED_COLUMNS, PlanPart, show_forecasts
from gateau_dagster.errors import GateauError
from gateau_dagster.features.evaluation.planned_judging import check_servers, passing_budget, planned_judging
from gateau_dagster.features.evaluation.questions import check_questions
from gateau_dagster.pipeline.plan import Plan
from gateau_dagster.pipeline.state import State
from gateau_dagster.pipeline.work_forecast import AssumedDevices, WorkForecast
from gateau_dagster.readable import indented_lines


def check_start(state: State, plan: Plan | None = None) -> None:
    """Refuse benchmarks whose files cannot be read; see `check_questions`."""
    check_questions(state, plan)


def check_plan(state: State, plan: Plan | None = None) -> None:
    """Check keys and budget of a plan; see `check_servers`.

    Nothing is checked without a plan: the cost depends on the plan, and the checks of the machine find a missing key.
    """
    if plan is not None:
        check_servers(state, plan, planned_judging(state, plan))


def plan_parts(state: State, plan: Plan, assumed: AssumedDevices) -> Iterator[PlanPart]:
    """Yield the parts on judging; `judging` for programs: from `judging_record`."""
    del assumed
    # It precedes another feature's part (80) in the JSON object, and follows it in the terminal.
    yield PlanPart(place=70, record=lambda: {"judging": judging_record(state, plan)})
    yield PlanPart(place=90, show=lambda out: show_judging(out, state, plan))


def show_judging(out: Console, state: State, plan: Plan) -> None:
    """Print one row per benchmark to be judged, and one for rated samples, with explanations. Print a warning if a
    server cannot be used, or if the cost exceeds or may exceed the budget.
    """
    planned = planned_judging(state, plan)
    show_forecasts(out, "to judge", ASKED_COLUMNS, planned)
    explain_in_grey(out, _grounds(planned))
    refusal = _refusal(state, plan, planned)
    if said := str(refusal or "") or passing_budget(state, planned):
        out.print(f"[yellow]![/yellow] {escape(indented_lines(said))}", soft_wrap=False)


def _grounds(planned: Sequence[WorkForecast]) -> Iterator[str]:
    if any(each.cost != each.most for each in planned):
        yield (
            "The first figure assumes that recomputed answers are the same as before, so that their judgments are "
            "kept. The second assumes that all differ. Only answers that differ are judged again."
        )
    if any(each.cost is not None and each.cost.usage.requests for each in planned):
        yield (
            "Equal answers are judged once, so the number may be lower. Repeated requests for replies without a "
            "score are not included."
        )


def judging_record(state: State, plan: Plan) -> dict[str, Any]:
    """Return the plan's judging for programs.

    benchmarks: the requests by benchmark, and for `characteristics`; `most`: if nothing stays the same.
    refused, code: why no request would be sent, as a message and as a code for `gateau explain`; or empty.
    warning: that the cost may exceed the budget, or empty.
    """
    planned = planned_judging(state, plan)
    refusal = _refusal(state, plan, planned)
    return {
        "benchmarks": {each.asset: each.record for each in planned},
        "refused": str(refusal or ""),
        "code": refusal.code if refusal is not None else "",
        "warning": passing_budget(state, planned),
    }


def _refusal(state: State, plan: Plan, planned: Sequence[WorkForecast]) -> GateauError | None:
    try:
        check_servers(state, plan, planned)
    except GateauError as error:
        return error
    return None
