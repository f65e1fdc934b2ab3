"""Define a schedule and a level-triggered sensor, which launch `refresh` and are off by default.

A second sensor is on by default: it launches nothing, and ends runs whose process is gone.
"""

import hashlib
import time
from collections.abc import Iterable
from typing import TypeAlias

import dagster as dg
from dagster import DagsterRunStatus, RunsFilter

from gateau_dagster.assets.runs.jobs import REFRESH, SCORING, Job
from gateau_dagster.assets.runs.work_run import EVERYTHING, SYNTHESIS, VARIANTS
from gateau_dagster.assets.steps.dead_runs import LOCK_TAG, UNFINISHED, end_dead_runs
from gateau_dagster.assets.steps.event_log import PLAN_TAG
from gateau_dagster.assets.steps.failures import redacted_failure
from gateau_dagster.assets.steps.partitions import own_name, own_options, own_resource
from gateau_dagster.config import Config
from gateau_dagster.errors import GateauError
from gateau_dagster.pipeline.plan import Plan
from gateau_dagster.pipeline.state import State
from gateau_dagster.resources.configuration import ConfigurationResource
from gateau_dagster.resources.lease import holder_of, store_id

_MINUTES_AFTER_FAILURE = 30
_ENDED_EARLY = {DagsterRunStatus.FAILURE: "failed", DagsterRunStatus.CANCELED: "was terminated"}
Due: TypeAlias = dg.RunRequest | dg.SkipReason


def nightly(config: Config) -> dg.ScheduleDefinition:
    """Return the schedule that launches `refresh` if something is out of date."""

    @dg.schedule(
        **own_options(config, "nightly_refresh", "configuration"),
        job_name=own_name(config, REFRESH),
        cron_schedule=config.execution.schedule,
        execution_timezone=config.execution.timezone,
        default_status=dg.DefaultScheduleStatus.STOPPED,
        description="Refreshes all outdated assets every night (execution.schedule, execution.timezone). Skips if "
        "all are up to date, or while a run is at work.",
    )
    @redacted_failure()
    def nightly_refresh(context: dg.ScheduleEvaluationContext) -> Due:
        return due(context.instance, own_resource(context, config, "configuration"))

    return nightly_refresh


def out_of_date_sensor(config: Config, jobs: Iterable[Job]) -> dg.SensorDefinition:
    """Return the sensor that compares state, not events: it sees a failed shard or a removed sample at every tick.

    `jobs`: of the pipeline. The sensor requests `refresh` alone. It names the jobs that this launches, since Dagster
    shows a sensor on the page of an asset if one of its jobs makes the asset.
    """
    launched = {own_name(config, name) for name in (REFRESH, EVERYTHING, SYNTHESIS, VARIANTS)}

    @dg.sensor(
        **own_options(config, "out_of_date", "configuration"),
        jobs=[job for job in jobs if job.name in launched],
        minimum_interval_seconds=60,
        default_status=dg.DefaultSensorStatus.STOPPED,
        description="Compares the store with the configuration (level-triggered) and launches `refresh` if they "
        "differ.",
    )
    @redacted_failure()
    def out_of_date(context: dg.SensorEvaluationContext) -> Due:
        return due(context.instance, own_resource(context, config, "configuration"))

    return out_of_date


def due(instance: dg.DagsterInstance, configuration: ConfigurationResource) -> Due:
    """Return a run request for `refresh`, or the reason to skip."""
    end_dead_runs(instance)
    try:
        config = configuration.config
        store = store_id(config)
        at_work = _at_work(instance, config, store) or holder_of(config)
        if at_work is not None:
            return dg.SkipReason(f"at work: {at_work}")
        plan = State(config=config).plan()
    except GateauError as error:
        return dg.SkipReason(f"cannot determine what is out of date: {error}")
    if not plan:
        return dg.SkipReason("everything is up to date")
    digest = plan_digest(plan, store)
    early = _ended_early(instance, config, digest)
    if early is not None:
        return dg.SkipReason(
            f"refresh {early} with exactly this work; the next attempt is {_MINUTES_AFTER_FAILURE} minutes after it, "
            "or at once if anything changes. A launch by hand is possible at any time"
        )
    return dg.RunRequest(job_name=own_name(config, REFRESH), tags={PLAN_TAG: digest})


def _at_work(instance: dg.DagsterInstance, config: Config, store: str) -> str | None:
    """Describe an unfinished run that makes assets on this store, `gateau run` included; None without one.

    A run on another store does not count: two projects may share a database. Only runs of `refresh` name their store.
    """
    jobs = {own_name(config, job) for job in (REFRESH, EVERYTHING, SYNTHESIS, VARIANTS, SCORING)}
    for run in instance.get_runs(RunsFilter(statuses=UNFINISHED)):
        if run.tags.get(LOCK_TAG, store if run.job_name in jobs else None) == store:
            return f"{run.job_name}, in run {run.run_id}"
    return None


def _ended_early(instance: dg.DagsterInstance, config: Config, digest: str) -> str | None:
    """Describe how the last `refresh` of the same work failed or was terminated a short while ago, else return None.

    Most failures persist, and a terminated run should not restart after a minute.
    """
    wanted = RunsFilter(job_name=own_name(config, REFRESH), tags={PLAN_TAG: digest})
    records = instance.get_run_records(wanted, limit=1)
    how = _ENDED_EARLY.get(records[0].dagster_run.status) if records else None
    if how is None:
        return None
    ended = records[0].end_time or records[0].create_timestamp.timestamp()
    lately = time.time() - ended < 60 * _MINUTES_AFTER_FAILURE
    return f"{how} in run {records[0].dagster_run.run_id}" if lately else None


def dead_runs_sensor(config: Config) -> dg.SensorDefinition:
    """Return the sensor that ends runs whose process is gone, which Dagster's run monitoring cannot see."""

    @dg.sensor(
        name=own_name(config, "dead_runs"),
        minimum_interval_seconds=30,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description="Ends runs whose process has died (killed, or the machine restarted) and frees their pool slots. "
        "Launches nothing.",
    )
    @redacted_failure()
    def dead_runs(context: dg.SensorEvaluationContext) -> dg.SkipReason:
        ended = [run.run_id for run in end_dead_runs(context.instance)]
        return dg.SkipReason(f"ended {', '.join(ended)}" if ended else "no run has lost its process")

    return dead_runs


def plan_digest(plan: Plan, store: str) -> str:
    """Return an id of the work on a store, by which the runs of one plan are found."""
    text = ";".join([store, *(f"{work.asset}:{','.join(work.partitions)}" for work in plan.work)])
    return hashlib.sha256(text.encode()).hexdigest()[:12]
