"""`gateau plan`: what would run, why, and about how much work it is."""

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rich.console import Console
from rich.text import Text

from gateau_dagster.cli.display import (
    as_line,
    console,
    explain_in_grey,
    left_table,
    show_earlier_demo,
    show_losses,
    time_range,
)
from gateau_dagster.cli.forecast import plan_forecast_record, show_short_forecast
from gateau_dagster.config import Config
from gateau_dagster.data.rejects import Rejects
from gateau_dagster.errors import gateau_command
from gateau_dagster.pipeline.asset import VARIANT
from gateau_dagster.pipeline.checks import checked_plan, checks_of
from gateau_dagster.pipeline.choice import response_share
from gateau_dagster.pipeline.declared import left_out_sentence
from gateau_dagster.pipeline.feature import hooks
from gateau_dagster.pipeline.losses import RAW, DataLoss, losses
from gateau_dagster.pipeline.observed import asks_hub, state_of
from gateau_dagster.pipeline.plan import AFTER, Plan, Work
from gateau_dagster.pipeline.selection_reads import CHOSEN
from gateau_dagster.pipeline.state import State
from gateau_dagster.pipeline.work_forecast import AssumedDevices, WorkForecast
from gateau_dagster.readable import plural, quantity


def _request_figures(found: WorkForecast) -> list[str]:
    """Return requests, kept replies, tokens and money; as a range if some of it may stay the same."""
    if found.cost is None or found.most is None:
        return ["not known yet", "", "", ""]
    ends = [found.cost] if found.cost == found.most else [found.cost, found.most]
    texts = [[f"{each.usage.requests:,}" for each in ends], [f"{each.kept:,}" for each in ends]]
    texts.append([f"{each.usage.prompt_tokens + each.usage.reply_tokens:,}" for each in ends])
    texts.append([f"{each.money:,.2f}" for each in ends if each.money is not None])
    columns = [" to ".join(dict.fromkeys(each)) for each in texts]
    return [*columns[:3], f"{columns[3]} {found.currency}" if columns[3] else ""]


SCORED_COLUMNS = ("samples", "tokens", "FLOPs", "time")
AMOUNT_COLUMNS = ("models", "amount", "time")
ASKED_COLUMNS = ("requests", "kept", "tokens", "cost")


def show_forecasts(
    out: Console,
    heading: str,
    columns: tuple[str, ...],
    forecasts: Collection[WorkForecast],
    *,
    together: bool = True,
    price: float | None = None,
) -> None:
    """Print a row per forecast; nothing without any.

    Args:
        together: whether a last row sums up several of them.
        price: of one device for an hour, which adds a column with the cost of the time.
    """
    if not forecasts:
        return
    columns = (*columns, "cost") if price is not None else columns
    table = left_table(heading, right=columns)
    for each in forecasts:
        table.add_row(each.asset, *_cells(each, columns, price))
        for setting, other in each.by_setting.items():
            table.add_row(f"  with {setting}", *_cells(replace(other, samples=None), columns, price), style="dim")
    if together and len(forecasts) > 1:
        whole = _together(forecasts)
        if whole.unit != "requests" or whole.cost is not None:
            cells = _cells(whole, columns, price)
            if price is not None:  # tables with fewer shards than workers pay for fewer devices
                cells[-1] = _money(each.money(price) for each in forecasts)
            table.add_row(whole.asset, *cells, style="bold")
    out.print()
    out.print(table)


def _money(costs: Iterable[tuple[float, float] | None]) -> str:
    """Return the bounds of the sum of the known costs."""
    known = [each for each in costs if each is not None]
    if not known:
        return "unknown"
    ends = [f"{sum(bounds):,.2f}" for bounds in zip(*known, strict=True)]
    return " to ".join(dict.fromkeys(ends))


def _cells(found: WorkForecast, columns: Sequence[str], price: float | None = None) -> list[str]:
    if found.unit == "requests":
        return _request_figures(found)
    amount = "unknown" if found.amount is None else f"{found.amount:,}"
    texts = {
        "samples": "" if found.samples is None else f"{found.samples:,}",
        "models": "" if found.models is None else f"{found.models:,}",
        "tokens": amount,
        "amount": amount if found.amount is None else f"{amount} {found.unit}",
        "FLOPs": "unknown" if found.flops is None else quantity(found.flops),
        "time": "unknown" if found.low is None or found.high is None else time_range(found.low, found.high),
    }
    if price is not None:
        texts["cost"] = _money([found.money(price)])
    return [texts[name] for name in columns]


def _together(forecasts: Collection[WorkForecast]) -> WorkForecast:
    """Return the sum of forecasts of one kind, as far as they are known."""
    first = next(iter(forecasts))

    def total(name: str) -> Any:
        known = [value for each in forecasts if (value := getattr(each, name)) is not None]
        return sum(known[1:], known[0]) if known else None

    sums = {name: total(name) for name in ("amount", "flops", "low", "high", "cost", "most")}
    whole = first.unit == "requests" or all(each.low is not None for each in forecasts)
    name = "together" if whole else "together (known part)"
    return WorkForecast(asset=name, unit=first.unit, currency=first.currency, **sums)


def lines_by_grounds(start: str, grounds: Iterable[tuple[str, str]]) -> Iterator[str]:
    """Yield a line for each of the grounds, with all names that it applies to; `start` is the beginning of a line."""
    names: dict[str, list[str]] = {}
    for name, why in grounds:
        names.setdefault(why, []).append(name)
    yield from (f"{start}{', '.join(named)}: {why}." for why, named in names.items())


_MOST_SHARDS = 4


_AS_CONFIGURED = AssumedDevices()


@dataclass(frozen=True, kw_only=True)
class PlanPart:
    """A part of `gateau plan`.

    place: determines the order of the parts in the terminal and in the JSON object, ascending. `_own_parts` has the
        places of the kernel's parts.
    show: prints the part, if it has anything to print; None: the part is for programs only.
    record: returns the part's keys of the JSON object.
    """

    place: int
    show: Callable[[Console], object] | None = None
    record: Callable[[], Mapping[str, Any]] = dict


def print_plan(
    config: Config, until: str | None, *, as_json: bool = False, assumed: AssumedDevices = _AS_CONFIGURED
) -> None:
    """Print the plan; load no model. assumed: the devices that its times are for.

    Raises:
        GateauError: the input or the store cannot be read, or there is no asset `until`; after the plan is printed,
            files of a benchmark cannot be read, or a training run does not fit into its GPUs.
    """
    out, state = console(), state_of(config=config, asks_hub=asks_hub(config, until))
    if as_json:
        out.print_json(json.dumps(plan_record(state, checked_plan(state, until), assumed)), ensure_ascii=True)
        return
    show_earlier_demo(out, config)
    with out.status("Comparing the store with the configuration"):
        plan = checked_plan(state, until)
    if not plan:
        show_unknown(out, state)
        out.print(f"[green]Everything is up to date.[/green] `{gateau_command('run')}` would do nothing.")
        asked = state.pipeline.required if until is None else state.pipeline.ancestors([until])
        show_losses(out, (loss for loss in losses(state, asked) if loss.notable))
        show_left_out(out, state, plan)
        show_response_share(out, state)
        show_short_forecast(out, state)
        return
    for part in _parts(state, plan, assumed):
        if part.show is not None:
            part.show(out)
    for check in hooks("forecast", "check_start"):
        check(state, plan)


def plan_record(state: State, plan: Plan, assumed: AssumedDevices = _AS_CONFIGURED) -> dict[str, Any]:
    """Return the plan for programs: `work` in the order in which it can run, and the keys of the other parts.

    `rejected`: records of the long input.
    `forecast`: of the configured choice, from the tables in the store; None without `evidence` or its tables.
    `left_out`: tables that nothing configured reads.
    """
    return {key: value for part in _parts(state, plan, assumed) for key, value in part.record().items()}


def _parts(state: State, plan: Plan, assumed: AssumedDevices) -> list[PlanPart]:
    of_features = (part for parts in hooks("forecast", "plan_parts") for part in parts(state, plan, assumed))
    return sorted([*_own_parts(state, plan), *of_features], key=lambda part: part.place)


def _own_parts(state: State, plan: Plan) -> Iterator[PlanPart]:
    def work() -> dict[str, Any]:
        return {
            "up_to_date": not plan,
            "work": [
                {
                    "asset": each.asset,
                    **_partitions_record(state, each),
                    "why": _why(state, each),
                    "conditional": each.conditional,
                }
                for each in plan.work
            ],
        }

    yield PlanPart(place=0, show=lambda out: show_plan(out, state, plan), record=work)

    def responses(out: Console) -> None:
        if plan.of(CHOSEN) is None:  # otherwise the figures are of an earlier choice
            show_response_share(out, state)

    yield PlanPart(place=20, record=lambda: {"rejected": _rejects_record(state.index.rejects)})
    yield PlanPart(place=59, show=responses)
    yield PlanPart(
        place=60,
        show=lambda out: show_short_forecast(out, state),
        record=lambda: {"forecast": plan_forecast_record(state)},
    )
    yield PlanPart(place=110, record=lambda: {"left_out": left_out(state, plan), "warnings": checks_of(state).warnings})


def show_response_share(out: Console, state: State) -> None:
    """Print how many response tokens the chosen samples hold, if that is known."""
    if (learned := response_share(state)) is not None:
        out.print(as_line(f"Chosen: {learned.sentence}."), soft_wrap=False)


def show_unknown(out: Console, state: State) -> None:
    """Print which data sets on the hub could not be compared with their records."""
    for said in state.on_hub[1]:
        out.print(f"[yellow]![/yellow] {as_line(said)}", soft_wrap=False)


def show_warnings(out: Console, state: State) -> None:
    """Print the warnings, a sentence or two each."""
    for said in checks_of(state).warnings:
        out.print(f"[yellow]![/yellow] {as_line(said)}", soft_wrap=False)


def show_plan(out: Console, state: State, plan: Plan) -> None:
    """Print one row per asset, explanations of terms, and the warnings."""
    show_warnings(out, state)
    of_variants = any(state.asset(work.asset).partitions == VARIANT for work in plan.work)
    table = left_table("asset", "shards, variants" if of_variants else "shards", "why")
    for work in plan.work:
        total = len(state.pipeline.partitions(work.asset))
        table.add_row(work.asset, _shards(work, total), Text(_why(state, work)))
    out.print(table)
    if any(work.conditional for work in plan.work):
        out.print(f"[dim]{AFTER}…: runs only if the named table changes[/dim]")
    rejects = state.index.rejects
    if rejects.count:
        show_losses(out, [DataLoss(asset=RAW, sentence=rejects.sentence("record"), notable=rejects.notable)])
    show_left_out(out, state, plan)


def _rejects_record(found: Rejects) -> dict[str, Any]:
    reasons = {kind.kind: kind.count for kind in found.kinds}
    return {"records": found.given, "rejected": found.count, "share": found.share, "reasons": reasons}


def left_out(state: State, plan: Plan) -> list[str]:
    """Return the tables that the configuration does not need and the plan does not make."""
    return [asset for asset in state.pipeline.left_out if plan.of(asset) is None]


def show_left_out(out: Console, state: State, plan: Plan) -> None:
    """Print one line about the tables that nothing configured reads."""
    if sentence := left_out_sentence(state.config, left_out(state, plan)):
        explain_in_grey(out, [sentence])
    if not state.config.models:
        explain_in_grey(out, ["Nothing is trained or evaluated: the configuration names no models."])


def _partitions_record(state: State, work: Work) -> dict[str, Any]:
    variants = state.asset(work.asset).partitions == VARIANT
    return {"shards": [], "variants": work.partitions} if variants else {"shards": work.partitions}


def _shards(work: Work, total: int) -> str:
    """Return `all 16`, `2 of 16: 03, 11`, or an empty text for a global asset."""
    if not work.partitions:
        return ""
    if len(work.partitions) == total:
        return f"all {total}"
    names = ", ".join(work.partitions[:_MOST_SHARDS]) + (", …" if len(work.partitions) > _MOST_SHARDS else "")
    return f"{len(work.partitions)} of {total}: {names}"


def _why(state: State, work: Work) -> str:
    """Return the reasons, and whether rows are derived without a model."""
    why, derivable = "; ".join(dict.fromkeys(work.reasons.values())), state.derivable(work.asset, work.partitions)
    stamps = state.stamps((work.asset, shard) for shard in derivable)
    old = sum(stamp.rows or 0 for stamp in stamps.values() if stamp) - sum(map(len, derivable.values()))
    if old:
        return f"{why} ({plural(old, 'row')} of an earlier release lack segment_probability: computed once more)"
    return f"{why} (derived: no segment is read)" if derivable else why
