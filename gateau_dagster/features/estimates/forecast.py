"""Show the estimates of a plan: scoring, training, answers, and the differences that its experiment can show."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import cache
from typing import Any

from rich.console import Console

from gateau_dagster.cli.display import as_line, explain_in_grey, left_table
from gateau_dagster.cli.plan import AMOUNT_COLUMNS, SCORED_COLUMNS, PlanPart, lines_by_grounds, show_forecasts
from gateau_dagster.features.estimates.amounts import planned_amounts
from gateau_dagster.features.estimates.estimator import Estimator
from gateau_dagster.features.estimates.power import Power, experiment_power
from gateau_dagster.features.estimates.scored_model import ScoredModel
from gateau_dagster.pipeline.expected_truncation import ExpectedTruncation, expected_truncation
from gateau_dagster.pipeline.losses import prompted_models
from gateau_dagster.pipeline.plan import Plan
from gateau_dagster.pipeline.state import State
from gateau_dagster.pipeline.work_forecast import AssumedDevices, WorkForecast
from gateau_dagster.readable import number, quantity, unit_of_difference


def plan_parts(state: State, plan: Plan, assumed: AssumedDevices) -> Iterator[PlanPart]:
    """Yield the parts on scoring, on training and asking, on the power of an experiment, and on truncation.

    Their keys for programs:

    `estimates`: by asset; `grounds`: in words. `workers`: how many score side by side in the estimates; None if
    nothing is scored.
    `amounts`: of training runs and answers.
    `power`: the fields of each Power.
    `truncation`: expected for each model that scores.
    """
    estimator = Estimator(state, assumed)
    estimates = cache(lambda: estimator.assets(estimator.scored(plan)))
    amounts = cache(lambda: planned_amounts(state, plan, estimator))

    @cache
    def truncation() -> list[ExpectedTruncation]:
        return [expected_truncation(state, model) for model in prompted_models(map(state.asset, estimates()))]

    def show_scored(out: Console) -> None:
        with out.status("Estimating: reading some of the texts"):
            forecasts, expected = estimates(), truncation()
        if forecasts:
            show_forecasts(out, "to score", SCORED_COLUMNS, forecasts.values(), price=assumed.price)
            show_truncation(out, expected)
            explain_in_grey(out, grounds(estimator, forecasts))

    def scored() -> dict[str, Any]:
        forecasts = estimates()
        return {
            "estimates": {asset: forecast.record for asset, forecast in forecasts.items()},
            "workers": len(estimator.workers.devices) if forecasts else None,
            "grounds": list(grounds(estimator, forecasts)) if forecasts else [],
        }

    def show_amounts(out: Console) -> None:
        show_forecasts(out, "to train, to ask", AMOUNT_COLUMNS, amounts(), together=False, price=assumed.price)
        explain_in_grey(out, times_by_grounds(amounts()))

    yield PlanPart(place=10, show=show_scored, record=scored)
    yield PlanPart(place=30, show=show_amounts, record=lambda: {"amounts": [each.record for each in amounts()]})
    yield PlanPart(
        place=50,
        show=lambda out: show_power(out, experiment_power(state, plan)),
        record=lambda: {"power": [asdict(power) for power in experiment_power(state, plan)]},
    )
    yield PlanPart(
        place=100, record=lambda: {"truncation": {each.model: _truncation_record(each) for each in truncation()}}
    )


def show_truncation(out: Console, expected: Iterable[ExpectedTruncation]) -> None:
    """Print what models will not see of the samples or cannot read, one line each."""
    for found in expected:
        for sentence, notable in found.lines:
            out.print(f"{'[yellow]![/yellow] ' if notable else ''}{as_line(sentence)}", soft_wrap=False)


def times_by_grounds(forecasts: Iterable[WorkForecast]) -> Iterator[str]:
    """Yield the sources of the times, a line for each of them."""
    return lines_by_grounds("Time of ", ((each.asset, each.grounds) for each in forecasts))


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
    count, name = len(workers.devices), estimator.assumed.name
    if name is not None:
        yield f"Whether the models fit into the memory of {name} is not checked."
    if count == 1:
        return
    one = "a device like this machine's" if name is None else f"one {name}"
    alike = f", each with {one}" if workers.sharing == 1 else ""
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
    explain_in_grey(out, lines_by_grounds("", ((power.benchmark, power.grounds) for power in powers)))
    seeds = "" if all(power.seeds for power in powers) else ", as far as seeds change nothing"
    line = (
        f"Such a difference is told apart at 95 % in four of five experiments{seeds}. Half of it needs four times the "
        "questions, and four times the seeds where these decide."
    )
    explain_in_grey(out, [line])


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
