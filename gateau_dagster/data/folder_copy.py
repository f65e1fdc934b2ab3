"""Copy a folder on S3 or the hub to this machine, for libraries that read only local files."""

# Why a copy per version: a library may have the files of an old copy open, or be about to open them. So a new version
# goes to another folder, under its final name only once it is complete. Old ones are removed a day after their last
# use.
#
# What it costs: disk for each version in use, and each call reads the copy once to verify its digests. Where a library
# can read from a remote file system, reading in place is better.

from __future__ import annotations

import json
import os
import secrets
import shutil
import time
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from gateau_dagster.data.sample import text_digest
from gateau_dagster.errors import GateauError, TransientError
from gateau_dagster.storage.content import tree_digests
from gateau_dagster.storage.failures import readable_failures, readable_input
from gateau_dagster.storage.files import replace_text
from gateau_dagster.storage.remote import HUB, S3, filesystem

PART = "part-"
_UNUSED_SECONDS = 24 * 3600.0
_Found = Mapping[str, Mapping[str, Any]]


def folder_copy(address: str, below: Path) -> Path:
    """Copy all files under a remote address into a folder of `below`, named by a digest of their content.

    Digests of the copied files are stored beside the folder; a copy that differs from them is made again. A new copy
    removes copies of this address that were unused for a day, and remains of interrupted ones.

    Raises:
        GateauError, TransientError: there are no files, they cannot be read or written, or they change meanwhile.
    """
    with readable_input(address):
        fs: Any = filesystem(address)
        root = address.removeprefix(S3).removeprefix(HUB).rstrip("/")
        found = _listed(fs, root)
    if not found:
        raise GateauError(
            "data.missing", f"Cannot read {address}: it contains no files. Check the address and AWS_ENDPOINT_URL."
        )
    version = _version(found)
    target = below / version
    if target.is_dir() and _is_as_copied(target, root):
        if os.access(target, os.W_OK):
            os.utime(target)  # marks it as in use; see _clear
        return target
    with readable_failures(f"write {target}"):
        below.mkdir(parents=True, exist_ok=True)
        _clear(below, root)
        if target.is_dir():
            shutil.rmtree(target)
        part = below / f"{PART}{secrets.token_hex(8)}"
        part.mkdir()
    try:
        with readable_input(address):
            for name in found:
                file = part / PurePosixPath(name).relative_to(root)
                file.parent.mkdir(parents=True, exist_ok=True)
                fs.get_file(name, str(file))
            if _version(_listed(fs, root)) != version:
                raise TransientError(
                    "data.changed", f"Cannot copy {address}: its files changed during the copy. Run again."
                )
        replace_text(_note_file(target), json.dumps({"address": root, "files": tree_digests(part)}))
        try:
            part.replace(target)
        except OSError:
            if not target.is_dir():  # no other process was faster
                raise
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return target


def _listed(fs: Any, root: str) -> _Found:
    return {name: info for name, info in fs.find(root, detail=True).items() if info["type"] == "file"}


def _version(found: _Found) -> str:
    files = (f"{name} {info.get('ETag') or info.get('blob_id')} {info['size']}" for name, info in sorted(found.items()))
    return text_digest(list(files))[:32]


def _note_file(copy: Path) -> Path:
    return copy.with_name(f"{copy.name}.json")


def _note(copy: Path) -> Any:
    try:
        return json.loads(_note_file(copy).read_bytes())
    except (OSError, ValueError, RecursionError):  # the note is missing or is no JSON
        return None


def _is_as_copied(target: Path, root: str) -> bool:
    try:
        return _note(target) == {"address": root, "files": tree_digests(target)}
    except OSError:  # a file that cannot be read
        return False


def _clear(below: Path, root: str) -> None:
    """Remove what was long unused: partial copies, and whole copies of `root`. Other processes may do so as well."""
    for folder in below.iterdir():
        note = _note(folder)
        if not folder.name.startswith(PART) and not (isinstance(note, dict) and note.get("address") == root):
            continue
        try:
            used = folder.stat().st_mtime
        except FileNotFoundError:  # another process removed it
            continue
        if time.time() - used > _UNUSED_SECONDS:
            shutil.rmtree(folder, ignore_errors=True)  # the next copy tries to remove the rest
            if not folder.exists():
                _note_file(folder).unlink(missing_ok=True)
