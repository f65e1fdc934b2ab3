"""Read Dagster's records of each asset; see `gateau_dagster.resources.history`."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime

from dagster import DagsterEventType, DagsterInstance, DagsterRun, DagsterRunStatus, EventLogEntry, RunsFilter

from gateau_dagster.assets.runs.instance import open_instance, records_folder
from gateau_dagster.assets.steps.dead_runs import LOCK_TAG, UNFINISHED, process_of, process_state
from gateau_dagster.assets.steps.failures import CODE, TITLE
from gateau_dagster.assets.steps.observations import record_what_the_store_holds
from gateau_dagster.assets.steps.partitions import asset_key, own_name
from gateau_dagster.config import Config
from gateau_dagster.errors import GateauError
from gateau_dagster.pipeline.asset import Asset
from gateau_dagster.pipeline.observed import state_of
from gateau_dagster.resources.history import (
    History,
    LastRun,
    RunAtWork,
    history_key,
    home_of,
    records_wanted,
    remember_history,
)
from gateau_dagster.resources.lease import known_store_id

_AT_WORK = [DagsterRunStatus.QUEUED, DagsterRunStatus.STARTING, DagsterRunStatus.STARTED, DagsterRunStatus.CANCELING]
_MOST_FAILURES = 20


def read_history(config: Config, assets: Sequence[Asset]) -> History:
    """Return Dagster's records of assets, and remember them for `known_history`.

    Raises:
        GateauError: the records cannot be read.
    """
    key = history_key(config)
    with open_instance(config) as instance:
        found, here = history_in(instance, config, assets), records_folder(instance) == home_of(config)
    if here:  # the key has the state of its files
        remember_history(config, found, key)
    return found


def remember_records(config: Config) -> None:
    """Remember that a run without work has nothing to record, if so, and Dagster's records as `read_history` does."""
    key = history_key(config)
    # What went wrong since the run is for the next command to report.
    with suppress(GateauError), open_instance(config) as instance:
        state = state_of(config=config)
        if record_what_the_store_holds(instance, state) or instance.get_runs(RunsFilter(statuses=UNFINISHED), limit=1):
            return
        found = history_in(instance, config, state.pipeline.assets)
        found = replace(found, on_record=records_wanted(state))
        here = records_folder(instance) == home_of(config)
    if here:
        remember_history(config, found, key)


def history_in(instance: DagsterInstance, config: Config, assets: Sequence[Asset]) -> History:
    """Return the records of assets in an instance."""
    last, at_work = last_runs(instance, config, assets), []
    for run in runs_at_work(instance, config):
        tag = process_of(instance, run)
        gone = tag is not None and process_state(tag) == "gone"
        at_work.append(RunAtWork(run=run.run_id, job=run.job_name, gone=gone))
    return History(last=last, failures=failed_since(last, last_failures(instance, config, assets)), at_work=(*at_work,))


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
