"""Read Dagster's records of each asset, and report each as current, stale, missing or failed."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal, TypeAlias

from dagster import DagsterEventType, DagsterInstance, DagsterRun, DagsterRunStatus, EventLogEntry, RunsFilter

from gateau_dagster.assets.runs.instance import home_of, open_instance
from gateau_dagster.assets.steps.dead_runs import LOCK_TAG
from gateau_dagster.assets.steps.failures import CODE, TITLE
from gateau_dagster.assets.steps.partitions import asset_key, own_name
from gateau_dagster.config import Config
from gateau_dagster.pipeline.asset import Asset
from gateau_dagster.pipeline.checks import checked_whole_plan
from gateau_dagster.pipeline.plan import Key, Work
from gateau_dagster.pipeline.state import State
from gateau_dagster.resources.lease import known_store_id
from gateau_dagster.storage import Stamp
from gateau_dagster.storage.store import REJECTED

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


Standing: TypeAlias = Literal["current", "stale", "missing", "failed"]


@dataclass(frozen=True, kw_only=True)
class AssetStatus:
    """The status of one asset. asked_for: whether the configuration needs it.

    parts: the number of partitions, 0 for a single output. stale, missing: how many of them are, or 1. rows: of the
    stored partitions, None if it is no table. size: bytes in the store, rejects included. why: the reasons for being
    out of date, or the reason of the failure. code: of the failure, for `gateau explain`; else empty.
    """

    asset: str
    standing: Standing
    asked_for: bool
    parts: int
    stale: int
    missing: int
    rows: int | None
    rejected: int
    size: int
    made: datetime | None
    run: str
    why: str
    code: str


def asset_statuses(state: State, instance: DagsterInstance | None) -> list[AssetStatus]:
    """Return the status of all assets, in the order of the data's flow.

    Raises:
        GateauError: for the reasons of `checked_whole_plan`.
    """
    assets, recorded = state.pipeline.assets, state.recorded()
    plan, sizes = checked_whole_plan(state, recorded), state.store.files.sizes()
    last = {} if instance is None else last_runs(instance, state.config, assets)
    failed = {} if instance is None else failed_since(last, last_failures(instance, state.config, assets))
    return [
        _status(state, asset, plan.of(asset.key), recorded, sizes, last.get(asset.key), failed.get(asset.key))
        for asset in assets
    ]


def _status(
    state: State,
    asset: Asset,
    work: Work | None,
    recorded: Mapping[Key, Stamp | None],
    sizes: Mapping[str, int],
    last: LastRun | None,
    failure: LastRun | None,
) -> AssetStatus:
    stamps = [stamp for (key, _), stamp in recorded.items() if key == asset.key]
    names = (f"{asset.key}.parquet", f"{asset.file}.stamp.json", asset.file)
    own = {name: size for name, size in sizes.items() if name in names or name.startswith(f"{asset.key}/")}
    rejects = f"{asset.key}/{REJECTED}"
    rows = [stamp.rows for stamp in stamps if stamp is not None and stamp.rows is not None]
    reasons = [*work.reasons.values()] if work is not None else []
    missing = sum(stamp is None for stamp in stamps)
    standing: Standing = "missing" if missing == len(stamps) else "stale"
    if not reasons:  # without a table, it waits for samples that are still to be made
        standing, failure = "missing" if stamps and missing else "current", None
    elif failure is not None:
        standing = "failed"
    return AssetStatus(
        asset=asset.key,
        standing=standing,
        asked_for=asset.key in state.pipeline.required,
        parts=len(stamps) if asset.partitions else 0,
        stale=max(0, len(reasons) - missing),
        missing=missing,
        rows=sum(rows) if rows else None,
        rejected=_rejected(
            state, asset, [name for name in own if name.startswith(f"{rejects}/") or name == f"{rejects}.parquet"]
        ),
        size=sum(own.values()),
        made=last.when if last is not None else None,
        run=failure.run if failure is not None else last.run if last is not None else "",
        why=failure.reason if failure is not None else "; ".join(dict.fromkeys(reasons)),
        code=failure.code if failure is not None else "",
    )


def _rejected(state: State, asset: Asset, files: Iterable[str]) -> int:
    """Return the number of rejects of the stored partitions; only partitions with rejects are read."""
    parts = [name.rsplit("/", 1)[1].removesuffix(".parquet") for name in files]
    known = {part for part in state.pipeline.partitions(asset.key) if part is not None}
    chosen: list[str | None] = [part for part in parts if part in known] if known else [None] * bool(parts)
    return state.store.read_rejected(asset.key, chosen).height
