"""`gateau plan`: what would run, why, and about how much work it is."""

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import psutil
from rich.console import Console
from rich.markup import escape
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
from gateau_dagster.errors import GateauError, gateau_command
from gateau_dagster.estimate.amounts import planned_amounts
from gateau_dagster.estimate.estimator import Estimator
from gateau_dagster.estimate.judging import check_servers, passing_budget, planned_judging
from gateau_dagster.estimate.questions import Power, check_questions, experiment_power
from gateau_dagster.estimate.scored_model import ScoredModel
from gateau_dagster.estimate.training_memory import TrainingMemory, check_memory, gib, planned_memory
from gateau_dagster.pipeline.asset import VARIANT
from gateau_dagster.pipeline.checks import checked_plan, checks_of
from gateau_dagster.pipeline.declared import left_out_sentence
from gateau_dagster.pipeline.expected_truncation import ExpectedTruncation, expected_truncation
from gateau_dagster.pipeline.feature import hooks
from gateau_dagster.pipeline.losses import RAW, DataLoss, losses, prompted_models
from gateau_dagster.pipeline.observed import asks_hub, state_of
from gateau_dagster.pipeline.plan import AFTER, Plan, Work
from gateau_dagster.pipeline.state import State
from gateau_dagster.pipeline.work_forecast import WorkForecast
from gateau_dagster.readable import indented_lines, number, quantity, unit_of_difference
from gateau_dagster.training.memory_plan import PARTS


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


def _refusal(state: State, plan: Plan, planned: Sequence[WorkForecast]) -> GateauError | None:
    try:
        check_servers(state, plan, planned)
    except GateauError as error:
        return error
    return None


SCORED_COLUMNS = ("samples", "tokens", "FLOPs", "time")
AMOUNT_COLUMNS = ("models", "amount", "time")
ASKED_COLUMNS = ("requests", "kept", "tokens", "cost")


def show_forecasts(
    out: Console, heading: str, columns: tuple[str, ...], forecasts: Collection[WorkForecast], *, together: bool = True
) -> None:
    """Print a row per forecast; nothing without any. together: whether a last row sums up several of them."""
    if not forecasts:
        return
    table = left_table(heading, right=columns)
    for each in forecasts:
        table.add_row(each.asset, *_cells(each, columns))
        for setting, other in each.by_setting.items():
            table.add_row(f"  with {setting}", *_cells(replace(other, samples=None), columns), style="dim")
    if together and len(forecasts) > 1:
        whole = _together(forecasts)
        if whole.unit != "requests" or whole.cost is not None:
            table.add_row(whole.asset, *_cells(whole, columns), style="bold")
    out.print()
    out.print(table)


def _cells(found: WorkForecast, columns: Sequence[str]) -> list[str]:
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


def _by_grounds(start: str, grounds: Iterable[tuple[str, str]]) -> Iterator[str]:
    """Yield a line for each of the grounds, with all names that it applies to."""
    names: dict[str, list[str]] = {}
    for name, why in grounds:
        names.setdefault(why, []).append(name)
    yield from (f"{start}{', '.join(named)}: {why}." for why, named in names.items())


def show_memory(out: Console, planned: Sequence[TrainingMemory]) -> None:
    """Print a line per asset with training runs; with a table by part, and with cures, for one that does not fit."""
    if planned:
        out.print()
    for each in planned:
        mark = "" if each.fits else "[yellow]![/yellow] "
        out.print(f"{mark}Memory of {as_line(f'{each.asset}: {_memory_line(each)}')}", soft_wrap=False)
        if each.fits or each.memory is None:
            continue
        table = left_table("part", right=("GPU", "host, each rank"))
        for part in PARTS:
            sizes = (each.memory.device[part], each.memory.host.get(part, 0))
            if any(sizes):
                table.add_row(part, *(gib(size) if size else "" for size in sizes))
        table.add_row("together", gib(each.memory.device_bytes), gib(each.memory.host_bytes), style="bold")
        out.print(table)
        if each.cures and not each.impossible:  # else the error names them
            out.print("It has more room with one of these in `training`:")
            for cure in each.cures:
                out.print(f"  {as_line(cure)}", soft_wrap=False)


def _memory_line(found: TrainingMemory) -> str:
    if found.memory is None:
        return f"not known: {found.unknown}."
    tokens, needed = f"in a pass of {found.tokens:,} tokens", gib(found.memory.device_bytes)
    if found.on_cpu:
        ranks = f" for each of {found.ranks} ranks" if found.ranks > 1 else ""
        return (
            f"{needed}{ranks} {tokens}, of the {gib(psutil.virtual_memory().total)} of this machine, which has no GPU. "
            "For a GPU elsewhere, give training.gpu_memory."
        )
    levers = ["offload_activations: on"] if found.levers.offload else []
    if found.levers.tile_tokens is not None:
        levers.append(f"tiled_mlp: {found.levers.tile_tokens}")
    used = f", with {' and '.join(levers)}" if levers else ""
    host = f" Host: {gib(found.memory.host_bytes)} for each rank." if found.memory.host_bytes else ""
    about = " Its layers are only approximated, so it may take more." if found.approximate else ""
    if found.gpu_bytes is None:
        cards = ", ".join(
            f"{gib(card)} {f'{longest:,}' if longest else 'none'}" for card, longest in found.longest.items()
        )
        return f"{needed} of a GPU {tokens}{used}.{host} The longest pass that fits, in tokens: {cards}.{about}"
    fitting = found.longest[found.gpu_bytes]
    most = f" The longest pass that fits: {fitting:,} tokens." if fitting else ""
    return f"{needed} of a GPU {tokens}{used}; it has {gib(found.gpu_bytes)}.{host}{most}{about}"


def memory_record(found: TrainingMemory) -> dict[str, Any]:
    """Return the memory of a training run for programs: the fields of TrainingMemory, and whether it fits."""
    return {
        **asdict(found),
        "longest": {str(card): tokens for card, tokens in found.longest.items()},
        "device_bytes": None if found.memory is None else found.memory.device_bytes,
        "host_bytes": None if found.memory is None else found.memory.host_bytes,
        "fits": found.fits,
        "refused": found.impossible,
    }


def show_power(out: Console, powers: Sequence[Power]) -> None:
    """Print the difference of two models that each benchmark tells apart; nothing without an experiment."""
    if not powers:
        return
    table = left_table("to tell two models apart", right=("questions", "a difference of"))
    for power in powers:
        questions = "unknown" if power.questions is None else f"{power.questions:,}"
        difference = (
            "unknown" if power.difference is None else f"{number(power.difference, 2)} {unit_of_difference(power.unit)}"
        )
        table.add_row(power.benchmark, questions, difference)
    out.print()
    out.print(table)
    explain_in_grey(out, _by_grounds("", ((power.benchmark, power.grounds) for power in powers)))
    seeds = "" if all(power.seeds for power in powers) else ", as far as seeds change nothing"
    line = (
        f"Such a difference is told apart at 95 % in four of five experiments{seeds}. Half of it needs four times the "
        "questions, and four times the seeds where these decide."
    )
    explain_in_grey(out, [line])


_MOST_SHARDS = 4


def print_plan(config: Config, until: str | None, *, as_json: bool = False, workers: int | None = None) -> None:
    """Print the plan; load no model. workers: see Estimator.

    Raises:
        GateauError: the input or the store cannot be read, or there is no asset `until`; after the plan is printed,
            files of a benchmark cannot be read, or a training run does not fit into its GPUs.
    """
    out, state = console(), state_of(config=config, asks_hub=asks_hub(config, until))
    if as_json:
        out.print_json(json.dumps(plan_record(state, checked_plan(state, until), workers)), ensure_ascii=True)
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
        show_short_forecast(out, state)
        return
    show_plan(out, state, plan)
    with out.status("Estimating: reading some of the texts"):
        estimator = Estimator(state, workers=workers)
        estimates = estimator.assets(estimator.scored(plan))
        expected = _expected(state, estimates)
    if estimates:
        show_forecasts(out, "to score", SCORED_COLUMNS, estimates.values())
        show_truncation(out, expected)
        explain_in_grey(out, grounds(estimator, estimates))
    amounts = planned_amounts(state, plan, estimator)
    show_forecasts(out, "to train, to ask", AMOUNT_COLUMNS, amounts, together=False)
    explain_in_grey(out, times_by_grounds(amounts))
    memory = planned_memory(state, plan, estimator)
    show_memory(out, memory)
    show_power(out, experiment_power(state, plan))
    show_short_forecast(out, state)
    for show in hooks("forecast", "show_plan"):
        show(out, state, plan)
    show_judging(out, state, plan)
    check_questions(state, plan)
    check_memory(memory)


def plan_record(state: State, plan: Plan, workers: int | None = None) -> dict[str, Any]:
    """Return the plan for programs: `work` in the order in which it can run, `estimates` by asset, `grounds` in words.

    `workers`: how many score side by side in the estimates; None if nothing is scored.
    `amounts`: of training runs and answers.
    `memory`: memory_record of each training.
    `power`: the fields of each Power.
    `forecast`: of the configured choice, from the tables in the store; None without `evidence` or its tables.
    `judging`: from judging_record.
    `rejected`: records of the long input.
    `truncation`: expected for each model that scores.
    `left_out`: tables that nothing configured reads.
    """
    estimator = Estimator(state, workers=workers)
    estimates = estimator.assets(estimator.scored(plan))
    return {
        "up_to_date": not plan,
        "work": [
            {"asset": each.asset, **_partitions_record(state, each), "why": _why(each), "conditional": each.conditional}
            for each in plan.work
        ],
        "estimates": {asset: found.record for asset, found in estimates.items()},
        "workers": len(estimator.workers.devices) if estimates else None,
        "grounds": list(grounds(estimator, estimates)) if estimates else [],
        "rejected": _rejects_record(state.index.rejects),
        "amounts": [each.record for each in planned_amounts(state, plan, estimator)],
        "memory": [memory_record(each) for each in planned_memory(state, plan, estimator)],
        "power": [asdict(power) for power in experiment_power(state, plan)],
        "forecast": plan_forecast_record(state),
        "judging": judging_record(state, plan),
        **{key: value for record in hooks("forecast", "plan_record") for key, value in record(state, plan).items()},
        "truncation": {each.model: _truncation_record(each) for each in _expected(state, estimates)},
        "left_out": left_out(state, plan),
        "warnings": checks_of(state).warnings,
    }


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
        table.add_row(work.asset, _shards(work, total), Text(_why(work)))
    out.print(table)
    if any(work.conditional for work in plan.work):
        out.print(f"[dim]{AFTER}…: runs only if the named table changes[/dim]")
    rejects = state.index.rejects
    if rejects.count:
        show_losses(out, [DataLoss(asset=RAW, sentence=rejects.sentence("record"), notable=rejects.notable)])
    show_left_out(out, state, plan)


def _expected(state: State, scored: Iterable[str]) -> list[ExpectedTruncation]:
    """Return the expected truncation for each model that is shown contexts for one of these tables."""
    return [expected_truncation(state, model) for model in prompted_models(map(state.asset, scored))]


def _rejects_record(found: Rejects) -> dict[str, Any]:
    reasons = {kind.kind: kind.count for kind in found.kinds}
    return {"records": found.given, "rejected": found.count, "share": found.share, "reasons": reasons}


def _truncation_record(found: ExpectedTruncation) -> dict[str, Any]:
    truncation = asdict(found.truncation)
    del truncation["nouns"]
    beyond = None if found.beyond is None else asdict(found.beyond)
    return {
        **truncation,
        "share": found.truncation.share,
        "unscorable": found.unscorable,
        "beyond_positions": beyond,
    }


def left_out(state: State, plan: Plan) -> list[str]:
    """Return the tables that the configuration does not need and the plan does not make."""
    return [asset for asset in state.pipeline.left_out if plan.of(asset) is None]


def show_left_out(out: Console, state: State, plan: Plan) -> None:
    """Print one line about the tables that nothing configured reads."""
    if sentence := left_out_sentence(state.config, left_out(state, plan)):
        explain_in_grey(out, [sentence])
    if not state.config.models:
        explain_in_grey(out, ["Nothing is trained or evaluated: the configuration names no models."])


def show_truncation(out: Console, expected: Iterable[ExpectedTruncation]) -> None:
    """Print what models will not see of the samples or cannot read, one line each."""
    for found in expected:
        for sentence, notable in found.lines:
            out.print(f"{'[yellow]![/yellow] ' if notable else ''}{as_line(sentence)}", soft_wrap=False)


def times_by_grounds(forecasts: Iterable[WorkForecast]) -> Iterator[str]:
    """Yield the sources of the times, a line for each of them."""
    return _by_grounds("Time of ", ((each.asset, each.grounds) for each in forecasts))


def grounds(estimator: Estimator, estimates: Mapping[str, WorkForecast]) -> Iterator[str]:
    """Yield the sources of the figures, and what is not known."""
    models = list(dict.fromkeys(estimator.model(estimator.tables[asset][0]) for asset in estimates))
    yield from dict.fromkeys(_rates(model) for model in models)
    for model in models:
        if model.parameters is not None and model.shape is not None:
            layers = "1 layer" if model.shape.layers == 1 else f"{model.shape.layers} layers"
            yield f"models.{model.name}: {quantity(model.parameters)} parameters in {layers}."
        if model.unknown:
            yield f"models.{model.name}: FLOPs are not known: {model.unknown}."
    for asset in estimates:
        if estimator.tables[asset][1] is None:
            yield f"{asset}: not estimated, because its method does not declare the cost of a sample."
    yield from times_by_grounds(estimates.values())
    yield from _beside(estimator)
    yield "Loading the models, benchmarks that measure without answers, and the rest are not estimated."


def _beside(estimator: Estimator) -> Iterator[str]:
    """Yield how many workers the times are for, and whether all of them have something to do."""
    workers, shards = estimator.workers, estimator.state.config.long_sft.shards
    count = len(workers.devices)
    if count == 1:
        return
    alike = ", each with a device like this machine's" if workers.sharing == 1 else ""
    yield f"Times are for {count:,} parallel workers{alike}. Starting them is not included."
    if workers.piece_seconds is None and count > shards:
        yield f"A worker takes a whole shard at a time: with long_sft.shards {shards:,}, at most as many workers score."


def _rates(model: ScoredModel) -> str:
    rates = model.rates
    if not rates.samples:
        return (
            f"Tokens: assumed {rates.context:.0f} characters each, because models.{model.name} has no tokenizer on "
            "this machine."
        )
    counted = f"from the lengths of all texts, by the model's tokenizer on {rates.samples} of them"
    return f"Tokens: {counted} ({rates.context:.2f} characters a token)."


def _partitions_record(state: State, work: Work) -> dict[str, Any]:
    """Return the stale shards or variants of an asset; empty for a global one."""
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


def _why(work: Work) -> str:
    return "; ".join(dict.fromkeys(work.reasons.values()))
