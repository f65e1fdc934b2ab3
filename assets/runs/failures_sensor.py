"""The sensor `failures`: tells people of runs that failed, and of runs whose checks failed as errors."""

from collections.abc import Set

import dagster as dg
from dagster import DagsterEventType, DagsterInstance, DagsterRun, DagsterRunStatus

from assets.runs.history import told
from gateau_dagster.config import Config
from gateau_dagster.errors import redacted
from resources.configuration import ConfigurationResource
from resources.notification import NotificationResource

_ASKED_FOR_BY = "gateau/refresh"  # a run that another one made, which tells of it
_SHOWN = 8  # characters of a run's id
_MOST_LINES = 10


def failure_sensors(config: Config, jobs: Set[str]) -> list[dg.SensorDefinition]:
    """Where `execution.notify` names somebody: on `jobs` and on what is materialised by hand, on from the start.

    Runs of `gateau run`, which Dagster counts to no code location, are told of as well, while the daemon runs.
    """
    if config.execution.notify is None:
        return []
    failed, ended = DagsterRunStatus.FAILURE, DagsterRunStatus.SUCCESS
    return [
        _sensor("failures", failed, jobs, "Tells of every run that failed (execution.notify)."),
        _sensor("failed_checks", ended, jobs, "Tells of runs that ended, but whose checks failed (execution.notify)."),
    ]


def _sensor(name: str, status: DagsterRunStatus, jobs: Set[str], description: str) -> dg.SensorDefinition:
    @dg.run_status_sensor(
        name=name,
        run_status=status,
        monitor_all_code_locations=True,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description=description,
    )
    def tell(
        context: dg.RunStatusSensorContext, configuration: ConfigurationResource, notification: NotificationResource
    ) -> dg.SkipReason:
        run, settings = context.dagster_run, configuration.config.execution.notify
        if settings is None or not (run.job_name in jobs or run.job_name.startswith("__ASSET")):
            return dg.SkipReason(f"run {run.run_id} of {run.job_name} is none of these jobs")
        if _ASKED_FOR_BY in run.tags:
            return dg.SkipReason(f"the run that asked for run {run.run_id} tells of it")
        found = (
            _failed_checks(context.instance, run)
            if status is DagsterRunStatus.SUCCESS
            else _reasons(context.instance, run)
        )
        if status is DagsterRunStatus.SUCCESS and not found:
            return dg.SkipReason(f"no check of run {run.run_id} failed as an error")
        subject, text = message(run, found, configuration.config.located_root, settings.ui)
        notification.send(settings, subject, text)
        return dg.SkipReason(f"told of run {run.run_id}")

    return tell


def message(run: DagsterRun, reasons: list[str], store: str, ui: str | None) -> tuple[str, str]:
    """Subject and text; what looks like a secret is left out."""
    how = "failed" if run.status is DagsterRunStatus.FAILURE else "ended with failed checks"
    subject = f"GATEAU: run {run.run_id[:_SHOWN]} of {run.job_name} {how}"
    left = len(reasons) - _MOST_LINES
    lines = [*reasons[:_MOST_LINES], *([f"and {left} more"] if left > 0 else []), f"The store is {store}."]
    if ui is not None:
        lines.append(f"{ui.rstrip('/')}/runs/{run.run_id}")
    return redacted(subject), redacted("\n".join(lines))


def _reasons(instance: DagsterInstance, run: DagsterRun) -> list[str]:
    """A line for each step that failed."""
    entries = instance.all_logs(run.run_id, of_type=DagsterEventType.STEP_FAILURE)
    lines = [
        f"{' + '.join(assets) or entry.step_key}: {reason}" for entry in entries for assets, reason in [told(entry)]
    ]
    return lines or ["No step says why: the run's log does."]


def _failed_checks(instance: DagsterInstance, run: DagsterRun) -> list[str]:
    """A line for each check that failed as an error; those that only warn are not told of."""
    lines = []
    for entry in instance.all_logs(run.run_id, of_type=DagsterEventType.ASSET_CHECK_EVALUATION):
        found = entry.get_dagster_event().asset_check_evaluation_data
        if not found.passed and found.partition is None and found.severity is dg.AssetCheckSeverity.ERROR:
            facts = "; ".join(f"{name}: {value.value}" for name, value in found.metadata.items())
            lines.append(f"{found.asset_key.to_user_string()}: check {found.check_name} failed ({facts})")
    return lines
