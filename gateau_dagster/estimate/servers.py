"""Check before a run that the servers of a plan can be used: their keys, and the judge's budget."""

from __future__ import annotations

from collections.abc import Sequence

from gateau_dagster.estimate.judging import PlannedJudging, check_budget
from gateau_dagster.evaluation.server_client import server_key
from gateau_dagster.pipeline.evaluation_assets import ANSWERS
from gateau_dagster.pipeline.plan import Plan
from gateau_dagster.pipeline.state import State


def check_servers(state: State, plan: Plan, judging: Sequence[PlannedJudging]) -> None:
    """Raise GateauError for a missing key, BudgetError if the judge's budget is exceeded.

    judging: of the same plan.
    """
    engine, judge = state.config.evaluation.engine, state.config.evaluation.judge
    asked = (work for work in plan.work if work.asset.startswith(f"{ANSWERS}/") and not work.conditional)
    if engine is not None and any(asked):
        server_key("evaluation.engine", engine.key, engine.base_url)
    # True if any request has, or may have, no kept reply.
    if judge is not None and any(each.cost is None or each.cost.usage.requests for each in judging):
        server_key("evaluation.judge", judge.key, judge.base_url)
    check_budget(state, judging)
