"""A schedule and a level-triggered sensor, which launch `refresh` and are off until someone turns them on.

A second sensor is on: it launches nothing, and ends runs whose process is gone.
"""

import hashlib
import time

import dagster as dg
from dagster import DagsterRunStatus, RunsFilter

from assets.runs.jobs import EVERYTHING, REFRESH, VARIANTS, refresh_job
from assets.steps.dead_runs import end_dead_runs
from assets.steps.event_log import PLAN_TAG
from gateau_dagster.config import Config
from gateau_dagster.errors import GateauError
from gateau_dagster.pipeline.plan import Plan
from gateau_dagster.pipeline.state import State
from resources.configuration import ConfigurationResource

_MINUTES_AFTER_FAILURE = 30
_AT_WORK = [
    DagsterRunStatus.QUEUED,
    DagsterRunStatus.NOT_STARTED,
    DagsterRunStatus.STARTING,
    DagsterRunStatus.STARTED,
    DagsterRunStatus.CANCELING,
]


def nightly(config: Config) -> dg.ScheduleDefinition:
    """`refresh` by the clock."""
    return dg.ScheduleDefinition(
        name="nightly_refresh",
        job=refresh_job,
        cron_schedule=config.execution.schedule,
        default_status=dg.DefaultScheduleStatus.STOPPED,
        description="Brings what is out of date up to date, every night (execution.schedule).",
    )


@dg.sensor(
    name="out_of_date",
    job=refresh_job,
    minimum_interval_seconds=60,
    default_status=dg.DefaultSensorStatus.STOPPED,
    description="Compares what is stored with what is wanted (level-triggered) and launches `refresh` on a difference.",
)
def out_of_date_sensor(
    context: dg.SensorEvaluationContext, configuration: ConfigurationResource
) -> dg.RunRequest | dg.SkipReason:
    """Looks at the state, not at events: a failed shard, a removed sample or a missed tick is seen again next time."""
    end_dead_runs(context.instance)
    # Runs of the job, and those that `gateau run` makes from a terminal.
    for job in (REFRESH, EVERYTHING, VARIANTS):
        at_work = context.instance.get_runs(RunsFilter(job_name=job, statuses=_AT_WORK), limit=1)
        if at_work:
            return dg.SkipReason(f"{job} is at work in run {at_work[0].run_id}")
    try:
        plan = State(config=configuration.config).plan()
    except GateauError as error:
        return dg.SkipReason(f"cannot tell what is out of date: {error}")
    if not plan:
        return dg.SkipReason("everything is up to date")
    digest = plan_digest(plan)
    failed = _failed_lately(context.instance, digest)
    if failed is not None:
        return dg.SkipReason(
            f"refresh failed at exactly this work in run {failed}; tried again {_MINUTES_AFTER_FAILURE} minutes after "
            "it, at once if anything changes, or when launched by hand"
        )
    return dg.RunRequest(tags={PLAN_TAG: digest})


def _failed_lately(instance: dg.DagsterInstance, digest: str) -> str | None:
    """The last `refresh` of the same work, if it failed a short while ago: most failures do not mend themselves."""
    records = instance.get_run_records(RunsFilter(job_name=REFRESH, tags={PLAN_TAG: digest}), limit=1)
    if not records or records[0].dagster_run.status is not DagsterRunStatus.FAILURE:
        return None
    ended = records[0].end_time or records[0].create_timestamp.timestamp()
    return records[0].dagster_run.run_id if time.time() - ended < 60 * _MINUTES_AFTER_FAILURE else None


@dg.sensor(
    name="dead_runs",
    minimum_interval_seconds=30,
    default_status=dg.DefaultSensorStatus.RUNNING,
    description="Ends runs whose process is gone (killed, or the machine restarted) and frees their pool slots; "
    "launches nothing.",
)
def dead_runs_sensor(context: dg.SensorEvaluationContext) -> dg.SkipReason:
    """Dagster's own run monitoring cannot see the process of a run on this machine."""
    ended = [run.run_id for run in end_dead_runs(context.instance)]
    return dg.SkipReason(f"ended {', '.join(ended)}" if ended else "no run has lost its process")


def plan_digest(plan: Plan) -> str:
    """Names the work, so that the runs of one difference can be found."""
    text = ";".join(f"{work.asset}:{','.join(work.partitions)}" for work in plan.work)
    return hashlib.sha256(text.encode()).hexdigest()[:12]
