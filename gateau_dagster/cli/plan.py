"""`gateau plan`: what would run, why, and about how much work it is."""

from rich.table import Table

from gateau_dagster.cli.display import console
from gateau_dagster.config import Config
from gateau_dagster.errors import GateauError
from gateau_dagster.incremental.estimate import Estimate, estimate
from gateau_dagster.incremental.plan import Plan, Work
from gateau_dagster.incremental.state import State

_MOST_SHARDS = 6


def print_plan(config: Config, until: str | None) -> None:
    """Prints the plan; loads no model.

    Raises:
        GateauError: the input or the store cannot be read, or there is no asset `until`.
    """
    out = console()
    with out.status("Comparing what is stored with what is wanted"):
        state = State(config=config)
        plan = state.plan()
        if until is not None:
            try:
                plan = plan.until(until, state.pipeline.nodes)
            except ValueError as error:
                raise GateauError(str(error)) from error
    if not plan:
        out.print("[green]Everything is up to date.[/green] `gateau run` would do nothing.")
        return
    with out.status("Estimating"):
        estimates = estimate(state, plan)
    out.print(plan_table(state, plan, estimates))
    if estimates:
        seconds = [found.seconds for found in estimates.values() if found.seconds is not None]
        out.print(
            f"Tokens and FLOPs of the scoring come from text lengths and model sizes; about {_duration(sum(seconds))} "
            "at 40 % of the matrix-product speed just measured here. Training and evaluation are not estimated."
        )


def plan_table(state: State, plan: Plan, estimates: dict[str, Estimate] | None = None) -> Table:
    """One row an asset."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("asset", "shards", "why"):
        table.add_column(column, overflow="fold")
    if estimates:
        for column in ("samples", "tokens", "FLOPs", "time"):
            table.add_column(column, justify="right")
    for work in plan.work:
        row = [work.asset, _shards(state, work), _why(work)]
        if estimates:
            row += _figures(estimates.get(work.asset))
        table.add_row(*row)
    return table


def _shards(state: State, work: Work) -> str:
    if not work.partitions:
        return ""
    names = ", ".join(work.partitions[:_MOST_SHARDS]) + (", …" if len(work.partitions) > _MOST_SHARDS else "")
    return f"{len(work.partitions)} of {len(state.shards)}: {names}"


def _why(work: Work) -> str:
    """The reasons, each once."""
    return "; ".join(dict.fromkeys(work.reasons.values()))


def _figures(found: Estimate | None) -> list[str]:
    if found is None:
        return ["", "", "", ""]
    flops = f"{found.flops:.1e}" if found.flops is not None else "unknown"
    time = _duration(found.seconds) if found.seconds is not None else "unknown"
    return [f"{found.samples:,}", f"{found.tokens:,}", flops, time]


def _duration(seconds: float) -> str:
    if seconds < 60:
        return f"{max(seconds, 1):.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
