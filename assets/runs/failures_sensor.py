"""Define the sensors that notify people of failed runs, and of runs whose checks failed as errors."""

import dagster as dg
from dagster import DagsterEventType, DagsterInstance, DagsterRun, DagsterRunStatus

from gateau_dagster.assets.runs.history import told
from gateau_dagster.assets.runs.launching import ASKED_BY_TAG, failed_checks_of
from gateau_dagster.assets.steps.failures import redacted_failure
from gateau_dagster.assets.steps.partitions import own_name, own_options, own_resource
from gateau_dagster.config import Config
from gateau_dagster.errors import redacted

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
    """Return whether a waiting run of `refresh` fails with this one and reports it. Re-executed runs have none."""
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
