"""Compare recorded with required outputs, by state and not by events, and name each difference. Pure functions."""

# What it does: one pass over the assets in topological order. It works out each output's required fingerprint from
# those of its upstreams, and compares it with the stamp in the store.
#
# Why by state: Dagster's automation acts on events. It does not ask again for failed partitions, and does not see a
# deleted file. A comparison of what is there needs no history, so a killed run, a copied store and a fresh database
# need no special case.
#
# What it costs: no file is opened here, since the caller has read the stamps. For 2,000 shards `gateau plan` takes four
# to eight seconds of CPU, its start included (docs/studies.md). Work grows with the outputs and with what they read: a
# global table reads every shard.
#
# What it does not find: a file that someone changed without changing its stamp. Readers do, since tables and stamps
# carry digests. When another way is better: a build system such as make compares times, which needs no digests. A
# copied store, or a switch of branches, would then rebuild everything.

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gateau_dagster.errors import GateauError
from gateau_dagster.pipeline.asset import VARIANT, Asset
from gateau_dagster.readable import nearest_name
from gateau_dagster.storage.stamp import Stamp, joint

MISSING = "missing"
CHANGED = "changed: "
_MEANS_OF_ROWS = (
    "scoring.device, device_map, workers or execution.ray changed, and some samples did not fit into memory"
)
_MEANS_OF_JUDGMENTS = "evaluation.judge changed, and some requests had no reply"
_MEANS_OF_ANSWERS = "evaluation.engine changed, and some questions had no answer"


def staleness_of(stamp: Stamp | None, wanted: Mapping[str, Any]) -> str:
    """Return the differences between an output's recorded inputs and settings and the required ones."""
    if stamp is None:
        return MISSING
    differences = changes_of(stamp, wanted)
    if not differences and stamp.lacking:
        settings = stamp.inputs.get("settings", {})
        # Nothing differs, and the stamp is stale only because rows are missing. So what changed is what decides which
        # rows can be computed. That has no name in the fingerprint, but the settings tell which of three kinds of table
        # this is.
        if "evaluation.judge.model" in settings:
            return _MEANS_OF_JUDGMENTS
        return _MEANS_OF_ROWS if settings.get("evaluation.engine") is None else _MEANS_OF_ANSWERS
    return CHANGED + "; ".join(differences) if differences else "changed"


def changes_of(stamp: Stamp, wanted: Mapping[str, Any]) -> list[str]:
    """Return the parts that differ, settings with their old and new value."""
    found = stamp.inputs
    before, after = found.get("upstream", {}), wanted.get("upstream", {})
    return [
        *(["code version"] if found.get("code") != wanted.get("code") else []),
        *_setting_changes(found.get("settings", {}), wanted.get("settings", {})),
        *(name for name in sorted({*before, *after}) if before.get(name) != after.get(name)),
    ]


def _setting_changes(found: Mapping[str, Any], wanted: Mapping[str, Any], prefix: str = "") -> list[str]:
    changes = []
    for name in sorted({*found, *wanted}):
        old, new = found.get(name), wanted.get(name)
        if old == new:
            continue
        # Name the nested key: "selection.rule" as a whole would hide which of its parameters changed.
        if isinstance(old, dict) and isinstance(new, dict):
            changes += _setting_changes(old, new, f"{prefix}{name}.")
        else:
            changes.append(f"{prefix}{name} {_short(old)} → {_short(new)}")
    return changes


def _short(value: object) -> str:
    text = "unset" if value is None else str(value)
    digest = re.fullmatch(r"[0-9a-f]{32,}", text) is not None
    return text[:12] + "…" if digest or len(text) > 40 else text


Key = tuple[str, str | None]
INPUT = "input"
# How the reason of conditional work begins. It runs only if its inputs, which are rebuilt, come out different.
AFTER = "waits for "


@dataclass(frozen=True, kw_only=True)
class Work:
    """One asset's part of a plan: its stale partitions (None for a global asset) and why each is stale."""

    asset: str
    reasons: Mapping[str | None, str]
    # Whether it may prove unnecessary: an upstream that is compared by content has to run first.
    conditional: bool = False

    @property
    def partitions(self) -> list[str]:
        """Return the stale partitions; empty for a global asset."""
        return sorted(partition for partition in self.reasons if partition is not None)


# Assets that exist only in some configurations, which a user may have read of.
_WHEN = {
    "comparison": "it compares methods, but only one is configured. Name another in selection.compare, such as "
    "random, or another length in selection.segment_lengths",
    "document_split": "no asset reads it. Set selection.per_document, or train with a benchmark that reserves "
    "documents",
    "evidence": "set selection.evidence: true, with a method that reads cam and perplexity/long, such as gateau",
}


@dataclass(frozen=True, kw_only=True)
class Plan:
    """All outdated outputs, in the order in which they can run."""

    work: Sequence[Work] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.work)

    def of(self, asset: str) -> Work | None:
        """Return the work on an asset, if any."""
        return next((work for work in self.work if work.asset == asset), None)

    def until(self, asset: str, assets: Sequence[Asset]) -> "Plan":
        """Return the part that `asset` needs, itself included.

        Raises:
            GateauError: there is no such asset.
        """
        wanted = ancestors(asset, assets)
        return Plan(work=[work for work in self.work if work.asset in wanted])

    def before(self, later: Collection[str]) -> "Plan":
        """Return the work on other assets than these; all of it if there is no other."""
        # All of it, if nothing else is left: an empty plan would mean that everything is up to date.
        first = [work for work in self.work if work.asset not in later]
        return Plan(work=first) if first else self


def ancestors(asset: str, assets: Sequence[Asset]) -> set[str]:
    """Return the asset and everything upstream of it; raise GateauError for an unknown asset."""
    by_name = {each.key: each for each in assets}
    if asset not in by_name:
        why = f" as things are configured: {_WHEN[asset]}" if asset in _WHEN else ""
        raise GateauError("usage.asset", f"there is no asset {asset}{why}; {nearest_name(asset, by_name)}")
    found: set[str] = set()
    waiting = [asset]
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting.extend(by_name[name].reads)
    return found


@dataclass(frozen=True, kw_only=True)
class Partitions:
    """The partitions of the assets.

    sets: the keys of every partition set, by its name.
    of: the name of each asset's set; empty for a single output.
    variants: by asset, the only variant that it reads; see Asset.variant.
    """

    sets: Mapping[str, Sequence[str]]
    of: Mapping[str, str]
    variants: Mapping[str, str]

    @classmethod
    def between(cls, assets: Sequence[Asset], sets: Mapping[str, Sequence[str]]) -> "Partitions":
        """Return the partitions of these assets."""
        variants = {asset.key: asset.variant for asset in assets if asset.variant}
        return cls(sets=sets, of={asset.key: asset.partitions for asset in assets}, variants=variants)

    def keys(self, asset: str) -> list[Key]:
        """Return all outputs of an asset."""
        name = self.of[asset]
        return [(asset, partition) for partition in self.sets[name]] if name else [(asset, None)]

    def read(self, upstream: str, reader: str, partition: str | None) -> list[Key]:
        """Return the outputs of `upstream` that one of `reader` reads: the same partition of a common set, or that of
        its variant, else all.
        """
        # The evaluation of one variant reads one model. By the rule of common sets, it would read those of all
        # variants, and wait for them all.
        if self.of[upstream] == VARIANT and reader in self.variants:
            return [(upstream, self.variants[reader])]
        same = self.of[upstream] and self.of[upstream] == self.of[reader]
        return [(upstream, partition)] if same else self.keys(upstream)


def make_plan(
    assets: Sequence[Asset],
    sets: Mapping[str, Sequence[str]],
    inputs: Mapping[str, str],
    recorded: Mapping[Key, Stamp | None],
    elsewhere: Mapping[Key, str] | None = None,
) -> Plan:
    """Compare recorded with required fingerprints.

    Args:
        assets: resolved, in topological order.
        sets: the keys of every partition set, by its name.
        inputs: content digest of each partition's input, for the assets that read it.
        recorded: the stamp of every output; None or absent if there is none.
        elsewhere: how an output that is kept outside the store differs from its record.
    """
    # `wanted` holds the version that each output has once this plan has run; None while that depends on work that is
    # still to be done. Upstreams come first in `assets`, so their entries exist when a reader asks for them.
    elsewhere = elsewhere or {}
    wanted: dict[Key, str | None] = {}
    partitions = Partitions.between(assets, sets)
    work: list[Work] = []
    for asset in assets:
        reasons: dict[str | None, str] = {}
        for key in partitions.keys(asset.key):
            part = asset.of_partition(key[1])
            versions = _upstream_versions(part, key, partitions, inputs, wanted, recorded)
            waiting = [name for name, version in versions.items() if version is None]
            # Its version cannot be known, and neither can those of its readers. Such work is in the plan, as it may
            # turn out to be needed. When its turn comes, another plan decides with the versions that are then known.
            if waiting:
                wanted[key] = None
                reasons[key[1]] = _reason_before(waiting, part, versions, recorded.get(key))
                continue
            known = {name: version for name, version in versions.items() if version is not None}
            wanted[key] = part.fingerprint(known)
            stamp = recorded.get(key)
            if stamp is not None and part.is_current(stamp, wanted[key] or ""):
                # A table without the rows that did not fit into memory has its own fingerprint. Readers were made from
                # that one, so they compare with it and not with the one of a complete table.
                wanted[key] = stamp.fingerprint
                if key in elsewhere:
                    reasons[key[1]] = CHANGED + elsewhere[key]
            else:
                reasons[key[1]] = staleness_of(stamp, part.made_from(known))
        if reasons:
            # One certain change is enough: then the asset runs, whatever its upstreams come out as.
            conditional = all(reason.startswith(AFTER) for reason in reasons.values())
            work.append(Work(asset=asset.key, reasons=reasons, conditional=conditional))
    return Plan(work=work)


def _reason_before(
    waiting: Sequence[str], asset: Asset, versions: Mapping[str, str | None], stamp: Stamp | None
) -> str:
    """Return why an output is planned while upstreams are pending: a certain change, or only that these may change."""
    if stamp is None:
        return MISSING
    before = stamp.inputs.get("upstream", {})
    # Assume that the pending upstreams come out as before. What still differs is a change that will be there in any
    # case, so the user can be told now.
    assumed = {name: before.get(name, "") if version is None else version for name, version in versions.items()}
    changes = changes_of(stamp, asset.made_from(assumed))
    return CHANGED + "; ".join(changes) if changes else f"{AFTER}{', '.join(waiting)}"


def _upstream_versions(
    asset: Asset,
    key: Key,
    partitions: Partitions,
    inputs: Mapping[str, str],
    wanted: Mapping[Key, str | None],
    recorded: Mapping[Key, Stamp | None],
) -> dict[str, str | None]:
    """Return the version of each upstream that an up-to-date output is made from; None while it cannot be known."""
    versions: dict[str, str | None] = {}
    if asset.reads_input:
        assert key[1] is not None
        versions[INPUT] = inputs[key[1]]
    # A reader of many partitions has one version of them all. Listing each would put 2,000 digests into every stamp of
    # a global table.
    for name, by in asset.reads.items():
        each = {read[1] or "": _version(read, by, wanted, recorded) for read in partitions.read(name, *key)}
        known = {part: version for part, version in each.items() if version is not None}
        versions[name] = None if len(known) < len(each) else one_version(known)
    return versions


def _version(key: Key, by: str, wanted: Mapping[Key, str | None], recorded: Mapping[Key, Stamp | None]) -> str | None:
    """Return the version of an upstream; by content, it is only known while the upstream is up to date."""
    # By content, the version is that of the table that is in the store. It says nothing while that table is stale: what
    # replaces it may be equal or not.
    want, stamp = wanted[key], recorded.get(key)
    if by == "fingerprint":
        return want
    return stamp.content if stamp is not None and want is not None and stamp.fingerprint == want else None


def one_version(versions: Mapping[str, str]) -> str:
    """Return the version of an upstream from those of its partitions."""
    return next(iter(versions.values())) if len(versions) == 1 else joint(versions)


def recorded_versions(
    asset: Asset, partition: str | None, partitions: Partitions, stamps: Mapping[Key, Stamp]
) -> dict[str, str]:
    """Return the versions of the upstream outputs in the store, from which an output computed now is made.

    `asset`: for this partition, from Asset.of_partition.
    """
    versions: dict[str, str] = {}
    for name, by in asset.reads.items():
        keys = partitions.read(name, asset.key, partition)
        each = {key[1] or "": stamps[key].content if by == "content" else stamps[key].fingerprint for key in keys}
        versions[name] = one_version(each)
    return versions
