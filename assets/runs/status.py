"""Report each asset as current, stale, missing or failed, with its rows, rejects, size and last run."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Literal, TypeAlias

from dagster import DagsterInstance

from gateau_dagster.assets.runs.history import LastRun, failed_since, last_failures, last_runs
from gateau_dagster.pipeline.asset import Asset
from gateau_dagster.pipeline.plan import Key, Work
from gateau_dagster.pipeline.state import State
from gateau_dagster.storage import Stamp
from gateau_dagster.storage.store import REJECTED

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
        GateauError: for the reasons of `State.plan`.
    """
    assets, recorded = state.pipeline.assets, state.recorded()
    plan, sizes = state.whole_plan(recorded), state.store.files.sizes()
    last = {} if instance is None else last_runs(instance, state.config, assets)
    failed = {} if instance is None else failed_since(last, last_failures(instance, state.config, assets))
    return [
        _status(state, asset, plan.of(asset.key), _Stored(asset, recorded, sizes), last, failed) for asset in assets
    ]


class _Stored:
    """The stored outputs of an asset."""

    def __init__(self, asset: Asset, recorded: Mapping[Key, Stamp | None], sizes: Mapping[str, int]) -> None:
        self.stamps = {key: stamp for key, stamp in recorded.items() if key[0] == asset.key}
        names = (f"{asset.key}.parquet", f"{asset.file}.stamp.json", asset.file)
        own = {name: size for name, size in sizes.items() if name in names or name.startswith(f"{asset.key}/")}
        self.size = sum(own.values())
        rejects = f"{asset.key}/{REJECTED}"
        self.rejects = [name for name in own if name.startswith(f"{rejects}/") or name == f"{rejects}.parquet"]

    @property
    def rows(self) -> int | None:
        counts = [stamp.rows for stamp in self.stamps.values() if stamp is not None and stamp.rows is not None]
        return sum(counts) if counts else None


def _status(
    state: State,
    asset: Asset,
    work: Work | None,
    stored: _Stored,
    last: Mapping[str, LastRun],
    failed: Mapping[str, LastRun],
) -> AssetStatus:
    reasons = [*work.reasons.values()] if work is not None else []
    missing = sum(stamp is None for stamp in stored.stamps.values())
    failure = failed.get(asset.key) if work is not None else None
    ran = last.get(asset.key)
    return AssetStatus(
        asset=asset.key,
        standing=_standing(reasons, failure is not None, missing, len(stored.stamps)),
        asked_for=asset.key in state.pipeline.required,
        parts=len(stored.stamps) if asset.partitions else 0,
        stale=len(reasons) - missing,
        missing=missing,
        rows=stored.rows,
        rejected=_rejected(state, asset, stored.rejects),
        size=stored.size,
        made=ran.when if ran is not None else None,
        run=failure.run if failure is not None else ran.run if ran is not None else "",
        why=failure.reason if failure is not None else "; ".join(dict.fromkeys(reasons)),
        code=failure.code if failure is not None else "",
    )


def _standing(reasons: Iterable[str], failed: bool, missing: int, outputs: int) -> Standing:
    if not any(True for _ in reasons):
        return "current"
    if failed:
        return "failed"
    return "missing" if missing == outputs else "stale"


def _rejected(state: State, asset: Asset, files: Iterable[str]) -> int:
    """Return the number of rejects of the stored partitions; only partitions with rejects are read."""
    parts = [name.rsplit("/", 1)[1].removesuffix(".parquet") for name in files]
    known = {part for part in state.pipeline.partitions(asset.key) if part is not None}
    chosen: list[str | None] = [part for part in parts if part in known] if known else [None] * bool(parts)
    return state.store.read_rejected(asset.key, chosen).height
