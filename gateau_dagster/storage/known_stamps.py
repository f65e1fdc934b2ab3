"""Stamps that this process has read: while a file stays what it is, it is not read for its stamp again."""

from __future__ import annotations

import os
import time

from gateau_dagster.storage.stamp import Stamp

# File systems count time in steps of up to two seconds: what changed just now may change again under the same time.
_SETTLED_NS = 3 * 10**9

# By address: which version was read, and what it says of itself.
_known: dict[str, tuple[str, Stamp | None]] = {}


def local_version(status: os.stat_result) -> str:
    """Another one with each other content of a file on this machine; empty for one that changed a moment ago.

    By the time of the last change to the file, which nobody can set back as that of its content.
    """
    if abs(time.time_ns() - status.st_ctime_ns) < _SETTLED_NS:
        return ""
    return f"{status.st_dev}:{status.st_ino}:{status.st_size}:{status.st_mtime_ns}:{status.st_ctime_ns}"


def is_known(address: str, version: str) -> bool:
    """Whether `known_stamp` is what the file of this version says; of an empty version nothing is."""
    found = _known.get(address)
    return bool(version) and found is not None and found[0] == version


def known_stamp(address: str) -> Stamp | None:
    """Of an address that `is_known`; None for what is no table of ours."""
    return _known[address][1]


def remember_stamp(address: str, version: str, stamp: Stamp | None) -> None:
    """`version`: of the file before it was read, so that one that was replaced meanwhile is read again."""
    if version:
        _known[address] = version, stamp
