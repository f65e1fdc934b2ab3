"""Report each asset as current, stale, missing or failed, by the store and by what Dagster has on record.

Importing Dagster and opening its records takes seconds. So what they say is remembered while no run is at work, by size
and time of Dagster's files: any event of any process changes one of them.
"""

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Literal, TypeAlias

from gateau_dagster.config import Config
from gateau_dagster.data.sample import text_digest
from gateau_dagster.pipeline.asset import Asset
from gateau_dagster.pipeline.checks import checked_whole_plan
from gateau_dagster.pipeline.input_versions import input_versions
from gateau_dagster.pipeline.inputs import inputs_of
from gateau_dagster.pipeline.plan import Key, Work
from gateau_dagster.pipeline.state import State
from gateau_dagster.resources.lease import known_store_id
from gateau_dagster.storage import Stamp
from gateau_dagster.storage.local import recall_all, remember_all
from gateau_dagster.storage.store import REJECTED

_MEMORY = "dagster-history.json"
_EDITION = "1"  # of what is remembered: raise it when Dagster's records are read differently


@dataclass(frozen=True, kw_only=True)
class LastRun:
    """The run of an asset's last record or failure.

    run: id, empty if no run made the record. when: UTC. reason, code: of a failure.
    """

    run: str
    when: datetime
    reason: str = ""
    code: str = ""


@dataclass(frozen=True, kw_only=True)
class RunAtWork:
    """A run of this store that has not ended. gone: whether its process is not there any more."""

    run: str
    job: str
    gone: bool


@dataclass(frozen=True, kw_only=True)
class History:
    """Dagster's records of a configuration.

    last: the run of each asset's latest record. failures: the latest failure of each asset without a later record.
    at_work: runs that have not ended. on_record: `records_wanted` when Dagster had all of it on record, and no run of
    any store had still to end; else empty.
    """

    last: Mapping[str, LastRun] = field(default_factory=dict)
    failures: Mapping[str, LastRun] = field(default_factory=dict)
    at_work: Sequence[RunAtWork] = ()
    on_record: str = ""


def home_of(config: Config) -> Path:
    """Return DAGSTER_HOME or a folder beside the configuration as an absolute path; it need not exist."""
    named = os.environ.get("DAGSTER_HOME") or config.work_folder / "dagster"
    return Path(os.path.expanduser(named)).absolute()  # noqa: PTH111  as Dagster does: ~nobody is a name like others


def history_key(config: Config) -> str:
    """Return a digest that changes with the configuration, the store, and each event that Dagster records in files."""
    home = home_of(config)
    files = [home / "dagster.yaml", *(file for file in home.glob("history/**/*") if file.suffix in {".db", ".db-wal"})]
    states = [f"{file} {each.st_size} {each.st_mtime_ns}" for file in sorted(files) if (each := _status(file))]
    names = [_EDITION, str(config.folder), *config.prefixes.keys, str(known_store_id(config))]
    return text_digest([*names, config.model_dump_json(), *states])


def _status(file: Path) -> os.stat_result | None:
    try:
        return file.stat()
    except OSError:
        return None


def known_history(config: Config) -> History | None:
    """Return Dagster's records without Dagster: none if nothing has ever run; None if they have to be read.

    Records in PostgreSQL may come from another machine, so they are always read.
    """
    if config.execution.postgres is not None:
        return None
    if not home_of(config).exists():
        return History()
    known = recall_all(config.work_folder / "cache" / _MEMORY)
    if known.get("key") != history_key(config):
        return None

    def runs(name: str) -> dict[str, LastRun]:
        whole = ((asset, {**each, "when": datetime.fromisoformat(each["when"])}) for asset, each in known[name].items())
        return {asset: LastRun(**each) for asset, each in whole}

    return History(last=runs("last"), failures=runs("failures"), on_record=known["on_record"])


def remember_history(config: Config, history: History, key: str) -> None:
    """Remember records that were read between two equal `history_key`, unless a run has still to end."""
    if history.at_work or key != history_key(config):
        return
    values: dict[str, Any] = {
        name: {asset: {**asdict(each), "when": each.when.isoformat()} for asset, each in found.items()}
        for name, found in (("last", history.last), ("failures", history.failures))
    }
    remember_all(config.work_folder / "cache" / _MEMORY, {**values, "key": key, "on_record": history.on_record})


def records_wanted(state: State) -> str:
    """Return a digest of all that a run without work records in Dagster: versions of inputs and of outputs."""
    versions: dict[object, object] = {**state.recorded(), **state.pipeline.code_versions}
    for given in inputs_of(state.config):
        versions |= {(given.key, part): each.version for part, each in input_versions(state, given).items()}
    return text_digest([f"{key} {version}" for key, version in versions.items()])


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


def asset_statuses(state: State, history: History) -> list[AssetStatus]:
    """Return the status of all assets, in the order of the data's flow.

    Raises:
        GateauError: for the reasons of `checked_whole_plan`.
    """
    assets, recorded = state.pipeline.assets, state.recorded()
    plan, sizes = checked_whole_plan(state, recorded), state.store.files.sizes()
    return [_asset_status(state, asset, plan.of(asset.key), recorded, sizes, history) for asset in assets]


def _asset_status(
    state: State,
    asset: Asset,
    work: Work | None,
    recorded: Mapping[Key, Stamp | None],
    sizes: Mapping[str, int],
    history: History,
) -> AssetStatus:
    last, failure = history.last.get(asset.key), history.failures.get(asset.key)
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
