"""Cache the stamps that this process has read, so that an unchanged file is not read again."""

from __future__ import annotations

import os
import time

from gateau_dagster.storage.stamp import Stamp

# File systems count time in steps of up to two seconds: a file that changed just now may change again unnoticed.
_SETTLED_NS = 3 * 10**9

# By address: the version that was read, and its stamp.
_known: dict[str, tuple[str, Stamp | None]] = {}


def local_version(status: os.stat_result) -> str:
    """Return a version of a local file that changes with its content; empty if it changed a moment ago.

    It contains the time of the last change to the inode, which users cannot set back, unlike that of the content.
    """
    if abs(time.time_ns() - status.st_ctime_ns) < _SETTLED_NS:
        return ""
    return f"{status.st_dev}:{status.st_ino}:{status.st_size}:{status.st_mtime_ns}:{status.st_ctime_ns}"


def is_known(address: str, version: str) -> bool:
    """Return whether `known_stamp` is of this version of the file; False for an empty version."""
    found = _known.get(address)
    return bool(version) and found is not None and found[0] == version


def known_stamp(address: str) -> Stamp | None:
    """Return the stamp of an address for which `is_known` is true; None if it is no table of ours."""
    return _known[address][1]


def remember_stamp(address: str, version: str, stamp: Stamp | None) -> None:
    """Cache a stamp. `version`: of the file before it was read, so that one replaced meanwhile is read again."""
    if version:
        _known[address] = version, stamp
