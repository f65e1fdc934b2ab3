"""Read Dagster's records of each asset: its last record, and the failure after it."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TypeAlias

from dagster import DagsterEventType, DagsterInstance, DagsterRun, DagsterRunStatus, EventLogEntry, RunsFilter

from gateau_dagster.assets.runs.instance import home_of, open_instance
from gateau_dagster.assets.steps.dead_runs import LOCK_TAG
from gateau_dagster.assets.steps.failures import CODE, TITLE
from gateau_dagster.assets.steps.partitions import asset_key, own_name
from gateau_dagster.config import Config
from gateau_dagster.pipeline.asset import Asset
from gateau_dagster.resources.lease import known_store_id

Records: TypeAlias = DagsterInstance
_AT_WORK = [DagsterRunStatus.QUEUED, DagsterRunStatus.STARTING, DagsterRunStatus.STARTED, DagsterRunStatus.CANCELING]
_MOST_FAILURES = 20


@dataclass(frozen=True, kw_only=True)
class LastRun:
    """The run of an asset's last record or failure.

    run: id, empty if no run made the record. when: UTC. reason, code: of a failure.
    """

    run: str
    when: datetime
    reason: str = ""
    code: str = ""


@contextmanager
def recorded_history(config: Config) -> Iterator[DagsterInstance | None]:
    """Yield Dagster's records of a configuration; None if nothing has ever run, so that reading creates no files.

    Records in PostgreSQL may come from another machine.

    Raises:
        GateauError: the records cannot be read.
    """
    if not home_of(config).exists() and config.execution.postgres is None:
        yield None
        return
    with open_instance(config) as instance:
        yield instance


def runs_at_work(instance: DagsterInstance, config: Config) -> Sequence[DagsterRun]:
    """Return unfinished runs, without those on another store: projects may share a database."""
    store = known_store_id(config)
    return [run for run in instance.get_runs(RunsFilter(statuses=_AT_WORK)) if run.tags.get(LOCK_TAG, store) == store]


def last_runs(instance: DagsterInstance, config: Config, assets: Sequence[Asset]) -> dict[str, LastRun]:
    """Return the run that made the latest record of each asset."""
    keys = {asset_key(config, asset.key): asset.key for asset in assets}
    found = {}
    for record in instance.get_asset_records([*keys]):
        last = record.asset_entry.last_materialization_record
        if last is not None:
            found[keys[record.asset_entry.asset_key]] = LastRun(run=last.run_id, when=_time(last.timestamp))
    return found


def last_failures(instance: DagsterInstance, config: Config, assets: Sequence[Asset]) -> dict[str, LastRun]:
    """Return the latest failure of each asset's step, among the latest failed runs."""
    steps: dict[str, list[str]] = {}
    for asset in assets:
        steps.setdefault(_step(config, asset), []).append(asset.key)
    found: dict[str, LastRun] = {}
    for run in instance.get_runs(RunsFilter(statuses=[DagsterRunStatus.FAILURE]), limit=_MOST_FAILURES):
        for entry in instance.all_logs(run.run_id, of_type=DagsterEventType.STEP_FAILURE):
            title, reason, code = told(entry)
            for asset in title or steps.get(entry.step_key or "", []):
                failure = LastRun(run=run.run_id, when=_time(entry.timestamp), reason=reason, code=code)
                found.setdefault(asset, failure)
    return found


def _step(config: Config, asset: Asset) -> str:
    """Return Dagster's name of the step that makes an asset."""
    return own_name(config, asset.step) if asset.step else asset_key(config, asset.key).to_python_identifier()


def told(entry: EventLogEntry) -> tuple[list[str], str, str]:
    """Return the assets of a failed step, if the failure names them, its reason, and its code, which may be empty."""
    data = entry.get_dagster_event().step_failure_data
    meant = data.user_failure_data
    title, code = (meant.metadata.get(key) if meant is not None else None for key in (TITLE, CODE))
    reason = meant.description if meant is not None else None
    if reason is None and data.error is not None:
        reason = data.error.message.strip().splitlines()[0]
    assets = str(title.value).split(" + ") if title is not None else []
    return assets, reason or "no reason is recorded", "" if code is None else str(code.value)


def _time(timestamp: float) -> datetime:
    return datetime.fromtimestamp(timestamp, UTC)


def failed_since(last: Mapping[str, LastRun], failures: Mapping[str, LastRun]) -> dict[str, LastRun]:
    """Return the failures of assets without a later record."""
    return {
        asset: failure for asset, failure in failures.items() if asset not in last or last[asset].when < failure.when
    }
