"""Says in words why an output is out of date."""

import re
from collections.abc import Mapping
from typing import Any

from gateau_dagster.storage.stamp import Stamp

MISSING = "missing"
CHANGED = "changed: "
_MEANS_OF_ROWS = (
    "scoring.device, device_map, workers or execution.ray changed, and some samples had not fitted into memory"
)
_MEANS_OF_JUDGMENTS = "evaluation.judge changed, which had left some requests without a reply"
_MEANS_OF_ANSWERS = "evaluation.engine changed, which had refused some questions"


def staleness_of(stamp: Stamp | None, wanted: Mapping[str, Any]) -> str:
    """What differs between what an output was made from and what it should be made from."""
    if stamp is None:
        return MISSING
    differences = changes_of(stamp, wanted)
    if not differences and stamp.lacking:
        return _means_of(stamp.inputs.get("settings", {}))
    return CHANGED + "; ".join(differences) if differences else "changed"


def _means_of(settings: Mapping[str, Any]) -> str:
    """What has changed for a table of these settings that lacks rows."""
    if "evaluation.judge.model" in settings:
        return _MEANS_OF_JUDGMENTS
    return _MEANS_OF_ROWS if settings.get("evaluation.engine") is None else _MEANS_OF_ANSWERS


def changes_of(stamp: Stamp, wanted: Mapping[str, Any]) -> list[str]:
    """The parts that differ, settings with their old and new value."""
    found = stamp.inputs
    return [
        *(["code version"] if found.get("code") != wanted.get("code") else []),
        *_setting_changes(found.get("settings", {}), wanted.get("settings", {})),
        *_upstream_changes(found.get("upstream", {}), wanted.get("upstream", {})),
    ]


def _setting_changes(found: Mapping[str, Any], wanted: Mapping[str, Any], prefix: str = "") -> list[str]:
    changes = []
    for name in sorted({*found, *wanted}):
        old, new = found.get(name), wanted.get(name)
        if old == new:
            continue
        if isinstance(old, dict) and isinstance(new, dict):
            changes += _setting_changes(old, new, f"{prefix}{name}.")
        else:
            changes.append(f"{prefix}{name} {_short(old)} → {_short(new)}")
    return changes


def _upstream_changes(found: Mapping[str, str], wanted: Mapping[str, str]) -> list[str]:
    return [name for name in sorted({*found, *wanted}) if found.get(name) != wanted.get(name)]


def _short(value: object) -> str:
    text = "unset" if value is None else str(value)
    digest = re.fullmatch(r"[0-9a-f]{32,}", text) is not None
    return text[:12] + "…" if digest or len(text) > 40 else text
