"""A schedule and a level-triggered sensor; both launch `refresh`, both are off until someone turns them on."""

import hashlib

import dagster as dg
from dagster import DagsterRunStatus, RunsFilter

from assets.jobs import REFRESH, refresh_job
from assets.processes import end_dead_runs
from gateau_dagster.config import Config
from gateau_dagster.errors import GateauError
from gateau_dagster.incremental.plan import Plan
from gateau_dagster.incremental.state import State
from resources.configuration import ConfigurationResource

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
    at_work = context.instance.get_runs(RunsFilter(job_name=REFRESH, statuses=_AT_WORK), limit=1)
    if at_work:
        return dg.SkipReason(f"refresh is at work in run {at_work[0].run_id}")
    try:
        plan = State(config=configuration.config).plan()
    except GateauError as error:
        return dg.SkipReason(f"cannot tell what is out of date: {error}")
    if not plan:
        return dg.SkipReason("everything is up to date")
    return dg.RunRequest(tags={"gateau/plan": plan_digest(plan)})


def plan_digest(plan: Plan) -> str:
    """Names the work, so that the runs of one difference can be found."""
    text = ";".join(f"{work.asset}:{','.join(work.partitions)}" for work in plan.work)
    return hashlib.sha256(text.encode()).hexdigest()[:12]
