"""`gateau plan`: what would run, why, and about how much work it is."""

from rich.console import Console
from rich.table import Table
from rich.text import Text

from gateau_dagster.cli.display import console
from gateau_dagster.config import Config
from gateau_dagster.errors import GateauError
from gateau_dagster.incremental.estimate import Estimate, estimate
from gateau_dagster.incremental.plan import AFTER, Plan, Work
from gateau_dagster.incremental.state import State

_MOST_SHARDS = 4


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
    show_plan(out, state, plan)
    with out.status("Estimating"):
        estimates = estimate(state, plan)
    if estimates:
        show_estimates(out, estimates)


def show_plan(out: Console, state: State, plan: Plan) -> None:
    """One row an asset, and what the words mean that need it."""
    table = _table("asset", "shards", "why")
    for work in plan.work:
        table.add_row(work.asset, _shards(work, len(state.shards)), Text(_why(work)))
    out.print(table)
    if any(work.conditional for work in plan.work):
        out.print(f"[dim]{AFTER}…: runs only if that comes out different from before[/dim]")


def show_estimates(out: Console, estimates: dict[str, Estimate]) -> None:
    """The scoring's work, and where the figures come from."""
    table = _table("to score", right=("samples", "tokens", "FLOPs", "time"))
    for asset, found in estimates.items():
        table.add_row(asset, f"{found.samples:,}", f"{found.tokens:,}", _flops(found.flops), _duration(found.seconds))
    seconds = [found.seconds for found in estimates.values() if found.seconds is not None]
    if len(seconds) > 1:
        known = "" if len(seconds) == len(estimates) else " (known part)"
        table.add_row(f"together{known}", "", "", "", _duration(sum(seconds)), style="bold")
    out.print()
    out.print(table)
    out.print(
        "[dim]Tokens from text lengths, FLOPs from model sizes, time at 40 % of the speed of a matrix product measured "
        "just now. Training and evaluation are not estimated.[/dim]",
        soft_wrap=False,
    )


def _table(*left: str, right: tuple[str, ...] = ()) -> Table:
    """A table without lines whose first two columns are never broken."""
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for position, column in enumerate(left):
        table.add_column(column, overflow="fold", no_wrap=position < 2)
    for column in right:
        table.add_column(column, justify="right", no_wrap=True)
    return table


def _shards(work: Work, total: int) -> str:
    """`all 16`, `2 of 16: 03, 11`, or nothing for a global asset."""
    if not work.partitions:
        return ""
    if len(work.partitions) == total:
        return f"all {total}"
    names = ", ".join(work.partitions[:_MOST_SHARDS]) + (", …" if len(work.partitions) > _MOST_SHARDS else "")
    return f"{len(work.partitions)} of {total}: {names}"


def _why(work: Work) -> str:
    """The reasons, each once."""
    return "; ".join(dict.fromkeys(work.reasons.values()))


def _flops(count: float | None) -> str:
    """`52 M`, `1.3 P`."""
    if count is None:
        return "unknown"
    size = 0
    while count >= 1000 and size < len("kMGTPEZY"):
        count, size = count / 1000, size + 1
    unit = f" {'kMGTPEZY'[size - 1]}" if size else ""
    return f"{count:.0f}{unit}" if count >= 10 or not size else f"{count:.1f}{unit}"


def _duration(seconds: float | None) -> str:
    if seconds is None:
        return "unknown"
    if seconds < 1:
        return "< 1 s"
    if seconds < 60:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 2 * 86_400 else f"{seconds / 86_400:.1f} days"
