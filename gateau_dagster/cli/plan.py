"""`gateau plan`: what would run, why, and about how much work it is."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from gateau_dagster.cli.display import console
from gateau_dagster.config import Config
from gateau_dagster.estimate.estimator import Estimate, Estimator, processes, scored_work
from gateau_dagster.estimate.scored_model import ScoredModel
from gateau_dagster.pipeline.pipeline import left_out_sentence
from gateau_dagster.pipeline.plan import AFTER, Plan, Work
from gateau_dagster.pipeline.state import State

_MOST_SHARDS = 4


def print_plan(config: Config, until: str | None, *, as_json: bool = False) -> None:
    """Prints the plan; loads no model.

    Raises:
        GateauError: the input or the store cannot be read, or there is no asset `until`.
    """
    out = console()
    if as_json:
        state, plan = _compared(config, until)
        out.print_json(json.dumps(plan_record(state, plan)))
        return
    with out.status("Comparing what is stored with what is wanted"):
        state, plan = _compared(config, until)
    if not plan:
        out.print("[green]Everything is up to date.[/green] `gateau run` would do nothing.")
        show_left_out(out, state, plan)
        return
    show_plan(out, state, plan)
    with out.status("Estimating: reading some of the texts, timing this device"):
        estimator = Estimator(state)
        estimates = estimator.assets(scored_work(state, plan))
    if estimates:
        show_estimates(out, estimates)
        for line in grounds(estimator):
            out.print(f"[dim]{escape(line)}[/dim]", soft_wrap=False)


def plan_record(state: State, plan: Plan) -> dict[str, Any]:
    """The plan for programs: `work` in the order in which it can run, `estimates` by asset, `grounds` in words.

    `left_out`: tables that nothing configured reads.
    """
    estimator = Estimator(state)
    estimates = estimator.assets(scored_work(state, plan))
    work = [
        {"asset": each.asset, "shards": each.partitions, "why": _why(each), "conditional": each.conditional}
        for each in plan.work
    ]
    return {
        "up_to_date": not plan,
        "work": work,
        "estimates": {asset: asdict(found) for asset, found in estimates.items()},
        "grounds": list(grounds(estimator)) if estimates else [],
        "left_out": left_out(state, plan),
    }


def show_plan(out: Console, state: State, plan: Plan) -> None:
    """One row an asset, and what the words mean that need it."""
    table = _table("asset", "shards", "why")
    for work in plan.work:
        table.add_row(work.asset, _shards(work, len(state.shards)), Text(_why(work)))
    out.print(table)
    if any(work.conditional for work in plan.work):
        out.print(f"[dim]{AFTER}…: runs only if that comes out different from before[/dim]")
    show_left_out(out, state, plan)


def left_out(state: State, plan: Plan) -> list[str]:
    """The tables that the configuration does not ask for and that the plan does not make either."""
    return [asset for asset in state.pipeline.left_out if plan.of(asset) is None]


def show_left_out(out: Console, state: State, plan: Plan) -> None:
    """One line about the tables that nothing configured reads."""
    sentence = left_out_sentence(state.config, left_out(state, plan))
    if sentence:
        out.print(f"[dim]{escape(sentence)}[/dim]", soft_wrap=False)
    if not state.config.models:
        out.print("[dim]Nothing is trained or evaluated: the configuration names no models.[/dim]", soft_wrap=False)


def show_estimates(out: Console, estimates: Mapping[str, Estimate]) -> None:
    """The scoring's work, asset by asset and in all."""
    table = _table("to score", right=("samples", "tokens", "FLOPs", "time"))
    for asset, found in estimates.items():
        table.add_row(asset, f"{found.samples:,}", _count(found.tokens), _flops(found.flops), _duration(found.seconds))
    if len(estimates) > 1:
        flops = [found.flops for found in estimates.values() if found.flops is not None]
        seconds = [found.seconds for found in estimates.values() if found.seconds is not None]
        name = "together" if len(seconds) == len(estimates) else "together (known part)"
        tokens = sum(found.tokens or 0 for found in estimates.values())
        count, time = _flops(sum(flops) if flops else None), _duration(sum(seconds) if seconds else None)
        table.add_row(name, "", f"{tokens:,}", count, time, style="bold")
    out.print()
    out.print(table)


def grounds(estimator: Estimator) -> Iterator[str]:
    """Where the figures come from, and what is not known. Raises GateauError for a model whose weights are damaged."""
    models = list(estimator.models.values())
    yield from dict.fromkeys(_rates(model) for model in models)
    for model in models:
        if model.parameters is not None and model.shape is not None:
            layers = "1 layer" if model.shape.layers == 1 else f"{model.shape.layers} layers"
            yield f"models.{model.name}: {_flops(model.parameters)} parameters in {layers}."
        if model.unknown_shape:
            yield f"models.{model.name}: FLOPs and time are not known: {model.unknown_shape}."
        elif model.unknown:
            yield f"models.{model.name}: the time is not known: {model.unknown}."
    timed = [model.speed for model in models if not isinstance(model.speed, str)]
    if timed:
        scoring = estimator.state.config.scoring
        longest = max(speed.longest for speed in timed)
        workers, _ = processes(scoring)
        side = f", {workers} processes side by side" if workers > 1 else ""
        yield (
            f"Time: scoring itself timed on this device ({scoring.dtype}, prompts of up to {longest:,} tokens) with "
            f"random models of the same shape{side}; without loading the models."
        )
    for asset in estimator.unestimated:
        yield f"{asset}: not estimated, since the method that brings this table does not say what a sample takes."
    yield "Training, evaluation and the rest are not estimated."


def _rates(model: ScoredModel) -> str:
    rates = model.rates
    if not rates.samples:
        return f"Tokens: {rates.context:.0f} characters each, for models.{model.name} has no tokenizer here."
    return (
        f"Tokens: from the lengths of all texts, by the model's tokenizer on {rates.samples} of them "
        f"({rates.context:.2f} characters a token)."
    )


def _compared(config: Config, until: str | None) -> tuple[State, Plan]:
    state = State(config=config)
    return state, state.plan_until(until)


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


def _count(number: int | None) -> str:
    return "unknown" if number is None else f"{number:,}"


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
