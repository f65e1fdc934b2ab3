"""Forecast the passes of the control."""

from collections.abc import Iterator
from dataclasses import replace

from gateau_dagster.cli.plan import SCORED_COLUMNS, PlanPart, show_forecasts
from gateau_dagster.features.control.design import EXCHANGED
from gateau_dagster.features.control.feature import CONTROL, SCORED
from gateau_dagster.features.estimates.estimator import Estimator
from gateau_dagster.pipeline.plan import Plan
from gateau_dagster.pipeline.state import State
from gateau_dagster.pipeline.work_forecast import AssumedDevices, WorkForecast


def plan_parts(state: State, plan: Plan, assumed: AssumedDevices) -> Iterator[PlanPart]:
    """Yield the part on the control, with the key `control` for programs, if it is to be made."""
    if plan.of(CONTROL) is None:
        return
    assumed = replace(assumed, workers=1)  # it runs in one process
    yield PlanPart(
        place=11,
        show=lambda out: show_forecasts(
            out, "to score for the control, at most", SCORED_COLUMNS, [forecast(state, assumed)], price=assumed.price
        ),
        record=lambda: {CONTROL: forecast(state, assumed).record},
    )


def forecast(state: State, assumed: AssumedDevices) -> WorkForecast:
    """Return the work of EXCHANGED samples as large as the average one, if no row is kept.

    It is known from recorded effort, and for tables without any from the plan's estimate.
    """
    count = min(EXCHANGED, state.index.accepted.height)
    estimator, parts = Estimator(state, assumed), []
    for asset in SCORED:
        stamps = (state.stamp(asset, shard) for shard in state.shards)
        efforts = [stamp.effort for stamp in stamps if stamp is not None and stamp.effort.get("samples")]
        if efforts:
            scored = count / sum(each["samples"] for each in efforts)
            measured = ("tokens", "flops", *(["seconds"] if assumed.name is None else []))  # that is of this machine
            sums = [scored * sum(each[name] for each in efforts) for name in measured]
            sums = sums if assumed.name is None else [*sums, None]
        else:
            found = estimator.assets({asset: state.shards})[asset]
            scored = count / max(1, found.samples or 1)
            sums = [None if each is None else scored * each for each in (found.amount, found.flops, found.seconds)]
        parts.append(sums)
    tokens, flops, seconds = (None if None in column else sum(column) for column in zip(*parts, strict=True))
    return WorkForecast(
        asset=CONTROL,
        samples=count,
        amount=None if tokens is None else round(tokens),
        unit="tokens",
        flops=flops,
        seconds=seconds,
        low=seconds and seconds / 2,
        high=seconds and seconds * 2,
    )
