"""Rejected samples, grouped so that ten thousand of them stay readable."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

import polars as pl

from gateau_dagster.report.text import printable

_DIGITS = re.compile(r"\d+")
_QUOTED = re.compile(r"'[^']*'|\"[^\"]*\"|`[^`]*`")
_EXAMPLES = 3
_CUT = 300


@dataclass(frozen=True, kw_only=True)
class RejectGroup:
    """Samples of one asset that were rejected for the same kind of reason; `reason` is the first one's, in full."""

    asset: str
    reason: str
    count: int
    examples: list[str]


def reject_groups(rejected: Mapping[str, pl.DataFrame], *, most: int = 50) -> list[RejectGroup]:
    """REJECTED tables by asset -> groups, the largest first within an asset; at most `most` an asset.

    Reasons that differ only in numbers or quoted text are of one kind. Beyond `most` kinds the rest is one group.
    """
    groups: list[RejectGroup] = []
    for asset, frame in rejected.items():
        kinds: dict[str, tuple[str, list[str]]] = {}
        for sample_id, reason in frame.select("sample_id", "reason").sort("sample_id").iter_rows():
            kind = _QUOTED.sub("'…'", _DIGITS.sub("#", reason or "no reason given"))
            kinds.setdefault(kind, (reason or "no reason given", []))[1].append(str(sample_id))
        ordered = sorted(kinds.values(), key=lambda kind: (-len(kind[1]), kind[0]))
        groups.extend(_group(asset, reason, ids) for reason, ids in ordered[:most])
        if rest := ordered[most:]:
            groups.append(
                _group(asset, f"{len(rest):,} other kinds of reason", [name for _, ids in rest for name in ids])
            )
    return groups


def _group(asset: str, reason: str, ids: list[str]) -> RejectGroup:
    shown = [printable(name[:80]) for name in ids[:_EXAMPLES]]
    text = printable(reason if len(reason) <= _CUT else reason[:_CUT] + " …")
    return RejectGroup(asset=asset, reason=text, count=len(ids), examples=shown)
