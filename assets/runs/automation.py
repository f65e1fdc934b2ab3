"""Define the schedule and the sensors: what is out of date, changed inputs, dead runs and failed runs."""

# Why by state, and not by Dagster's automation conditions: these act on events. They do not ask again for a failed
# partition, and do not see a file that was removed. A comparison of the store with the configuration sees both at every
# tick.
#
# What it costs: a comparison reads the stamps, so seconds for thousands of shards. `inputs`, which is on by default,
# therefore looks at sizes and times first, and compares only after one of them changed.

import hashlib
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, wait
from pathlib import Path
from typing import TypeAlias

import dagster as dg
from dagster import AssetCheckEvaluation, DagsterEventType, DagsterInstance, DagsterRun, DagsterRunStatus, RunsFilter

# Dagster returns this type from public methods of the instance's event log, but exports its name nowhere else.
from dagster._core.storage.asset_check_execution_record import AssetCheckExecutionRecordStatus

from gateau_dagster.assets.runs.checks import evaluation, latest_record, staleness
from gateau_dagster.assets.runs.history import told
from gateau_dagster.assets.runs.jobs import REFRESH, SCORING, Job
from gateau_dagster.assets.runs.launching import ASKED_BY_TAG, WORK_JOBS, failed_checks_of
from gateau_dagster.assets.steps.dead_runs import LOCK_TAG, UNFINISHED, end_dead_runs
from gateau_dagster.assets.steps.event_log import PLAN_TAG
from gateau_dagster.assets.steps.failures import redacted_failure
from gateau_dagster.assets.steps.observations import observe_inputs
from gateau_dagster.assets.steps.partitions import asset_key, own_name, own_options, own_resource
from gateau_dagster.config import Config
from gateau_dagster.errors import GateauError, redacted
from gateau_dagster.pipeline.asset import UP_TO_DATE
from gateau_dagster.pipeline.checks import checked_plan, checked_whole_plan
from gateau_dagster.pipeline.input_versions import glance
from gateau_dagster.pipeline.observed import state_of
from gateau_dagster.pipeline.plan import Plan
from gateau_dagster.pipeline.state import State
from gateau_dagster.readable import plural
from gateau_dagster.resources.configuration import ConfigurationResource
from gateau_dagster.resources.lease import holder_of, store_id
from gateau_dagster.storage.stamp import fingerprint

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
    launched = {own_name(config, name) for name in (REFRESH, *WORK_JOBS)}

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
        plan = checked_plan(state_of(config=config))
    except GateauError as error:
        return dg.SkipReason(f"cannot determine what is out of date: {error}")
    if not plan:
        return dg.SkipReason("everything is up to date")
    digest = plan_digest(plan, store)
    # By the digest of the plan: whatever changes makes another plan, which is tried at once.
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
    jobs = {own_name(config, job) for job in (REFRESH, SCORING, *WORK_JOBS)}
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


def sign_of(config: Config, last_run: str) -> str:
    """Return a signature that changes with configuration, inputs, models and the last run. It reads no content.

    Raises:
        GateauError: an input is missing or cannot be reached.
    """
    return fingerprint({"config": config.model_dump(mode="json"), "inputs": glance(config), "run": last_run})


class Looks:
    """One comparison of the store with its configuration at a time, in a thread, kept across ticks."""

    def __init__(self) -> None:
        self._at_work: dict[tuple[Path, tuple[str, ...]], tuple[str, Future[tuple[State, Plan]]]] = {}

    def plan(self, config: Config, sign: str, seconds: float) -> tuple[State, Plan] | None:
        """Return the plan for this signature, or None while a comparison is running or was of another signature.

        Raises:
            GateauError: for the reasons of `checked_whole_plan`; unforeseen errors are raised unchanged.
        """
        name = (config.work_folder, config.prefixes.keys)
        if name not in self._at_work:
            self._at_work[name] = sign, _comparison(config)
        compared, comparison = self._at_work[name]
        if not wait([comparison], seconds).done:
            return None
        del self._at_work[name]  # a failed one, too: the next tick starts another
        found = comparison.result()
        return found if compared == sign else None


def _comparison(config: Config) -> Future[tuple[State, Plan]]:
    """Start to compare in a daemon thread, which does not keep the process from ending."""
    state, found = state_of(config=config), Future[tuple[State, Plan]]()

    def compare() -> None:
        try:
            found.set_result((state, checked_whole_plan(state)))
        except BaseException as error:  # polars' panics too: a look without an end would stop all later ones
            found.set_exception(error)

    threading.Thread(target=compare, daemon=True, name="inputs-look").start()
    return found


_SECONDS = 20.0  # a tick has a minute
_looks = Looks()


def inputs_sensor(config: Config) -> dg.SensorDefinition:
    """Return the sensor `inputs`, which compares sizes and times only, until one of them changes."""

    @dg.sensor(
        **own_options(config, "inputs", "configuration"),
        minimum_interval_seconds=30,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description="Shows on the graph whether input or models changed: the inputs' versions, and the check "
        "`up_to_date` of every asset. Launches nothing.",
    )
    @redacted_failure()
    def inputs(context: dg.SensorEvaluationContext) -> dg.SkipReason:
        instance, configuration = context.instance, own_resource(context, config, "configuration")
        try:
            sign = sign_of(configuration.config, _last_run(instance))
            if sign == context.cursor:
                return dg.SkipReason("input, models and store did not change")
            found = _looks.plan(configuration.config, sign, _SECONDS)
            if found is None:
                return dg.SkipReason("reads the changes; a later tick reports what is out of date")
            changed = observe_inputs(instance, found[0])
        except GateauError as error:
            return dg.SkipReason(f"cannot read the state: {error}")
        new = [*new_findings(instance, *found)]
        for each in new:
            instance.report_runless_asset_event(each)
        context.update_cursor(sign)
        return dg.SkipReason(f"{plural(changed, 'new version')} of inputs, {plural(len(new), 'new finding')}")

    return inputs


def _last_run(instance: DagsterInstance) -> str:
    # Its outputs are seen only after it.
    return "; ".join(f"{run.run_id} {run.status.value}" for run in instance.get_runs(limit=1))


def new_findings(instance: DagsterInstance, state: State, plan: Plan) -> Iterator[AssetCheckEvaluation]:
    """Yield the results of `up_to_date` that are not on record yet; assets that were never made are skipped."""
    checks = {
        dg.AssetCheckKey(asset_key(state.config, asset.key), UP_TO_DATE): asset for asset in state.pipeline.assets
    }
    known = _on_record(instance, [*checks])
    for check, asset in checks.items():
        result = staleness(state, asset, plan.of(asset.key))
        target = latest_record(instance, check.asset_key, None)
        if target is None or asset.key not in state.pipeline.required:
            continue
        before = known.get(check)
        if before is None or (before.passed, before.metadata) != (result.passed, dict(result.metadata)):
            yield evaluation(check, result, target)


def _on_record(
    instance: DagsterInstance, checks: Sequence[dg.AssetCheckKey]
) -> dict[dg.AssetCheckKey, AssetCheckEvaluation]:
    # A run that has planned a check will evaluate it, so its earlier evaluation no longer counts.
    records = instance.event_log_storage.get_latest_asset_check_execution_by_key(checks)
    ended = {AssetCheckExecutionRecordStatus.SUCCEEDED, AssetCheckExecutionRecordStatus.FAILED}
    return {
        key: record.evaluation
        for key, record in records.items()
        if record.status in ended and record.evaluation is not None
    }


_SHOWN = 8  # characters of a run's id
_MOST_LINES = 10


def failure_sensors(config: Config) -> list[dg.SensorDefinition]:
    """Return the sensors on all runs of this code location if `execution.notify` is set; they are on by default."""
    if config.execution.notify is None:
        return []
    failed, ended = DagsterRunStatus.FAILURE, DagsterRunStatus.SUCCESS
    return [
        _sensor(config, "failures", failed, "Sends a message about every failed run (execution.notify)."),
        _sensor(
            config,
            "failed_checks",
            ended,
            "Sends a message about runs that succeeded but whose checks failed (execution.notify).",
        ),
    ]


def _sensor(config: Config, name: str, status: DagsterRunStatus, description: str) -> dg.SensorDefinition:
    @redacted_failure()
    def tell(context: dg.RunStatusSensorContext) -> dg.SkipReason:
        configuration = own_resource(context, config, "configuration")
        run, settings = context.dagster_run, configuration.config.execution.notify
        if settings is None:
            return dg.SkipReason("execution.notify names no recipient any more")
        if not _is_own(config, run):
            return dg.SkipReason(f"run {run.run_id} makes no asset below {'/'.join(config.prefixes.keys)}")
        if run.status is not status:  # Dagster records some interrupts as failures at first
            return dg.SkipReason(f"run {run.run_id} is now {run.status.value}")
        if status is DagsterRunStatus.FAILURE and _is_told_of_by_another(run):
            return dg.SkipReason(f"the run that launched run {run.run_id} sends the message")
        found = (
            _failed_checks(context.instance, run)
            if status is DagsterRunStatus.SUCCESS
            else _reasons(context.instance, run)
        )
        if status is DagsterRunStatus.SUCCESS and not found:
            return dg.SkipReason(f"no check of run {run.run_id} failed as an error")
        subject, text = message(run, found, configuration.config.located_root, settings.ui)
        own_resource(context, config, "notification").send(settings, subject, text)
        return dg.SkipReason(f"sent a message about run {run.run_id}")

    # Its decorator takes resources only as arguments, whose names are fixed.
    return dg.RunStatusSensorDefinition(
        **own_options(config, name, "configuration", "notification"),
        run_status=status,
        run_status_sensor_fn=tell,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description=description,
    )


def _is_own(config: Config, run: DagsterRun) -> bool:
    """Return whether a run is one of this pipeline; without a prefix, the whole code location is the pipeline's."""
    prefix = [*config.prefixes.keys]
    checks = (check.asset_key for check in run.asset_check_selection or ())
    chosen = any([*key.path[: len(prefix)]] == prefix for key in (*(run.asset_selection or ()), *checks))
    return chosen or run.job_name.startswith(own_name(config, ""))


def _is_told_of_by_another(run: DagsterRun) -> bool:
    # A waiting run of `refresh` fails with this one, and reports it. A run that is executed again has none that waits.
    return ASKED_BY_TAG in run.tags and run.parent_run_id is None


def message(run: DagsterRun, reasons: list[str], store: str, ui: str | None) -> tuple[str, str]:
    """Return subject and text of the notification, with secrets redacted."""
    how = "failed" if run.status is DagsterRunStatus.FAILURE else "ended with failed checks"
    subject = f"GATEAU: run {run.run_id[:_SHOWN]} of {run.job_name} {how}"
    left = len(reasons) - _MOST_LINES
    lines = [*reasons[:_MOST_LINES], *([f"and {left} more"] if left > 0 else []), f"The store is {store}."]
    if ui is not None:
        lines.append(f"{ui.rstrip('/')}/runs/{run.run_id}")
    return redacted(subject), redacted("\n".join(lines))


def _reasons(instance: DagsterInstance, run: DagsterRun) -> list[str]:
    """Return a line per failed step, or the reason on record for the run."""
    entries = instance.all_logs(run.run_id, of_type={DagsterEventType.STEP_FAILURE, DagsterEventType.RUN_FAILURE})
    events = [(entry, entry.get_dagster_event()) for entry in entries]
    steps = [
        f"{' + '.join(assets) or entry.step_key}: {reason}{f' [{code}]' if code else ''}"
        for entry, event in events
        if event.is_step_failure
        for assets, reason, code in [told(entry)]
    ]
    return steps or [event.message or "Read the run's log for the reason." for _, event in events]


def _failed_checks(instance: DagsterInstance, run: DagsterRun) -> list[str]:
    entries = instance.all_logs(run.run_id, of_type=DagsterEventType.ASSET_CHECK_EVALUATION)
    return failed_checks_of((entry.get_dagster_event() for entry in entries), as_errors=True)
