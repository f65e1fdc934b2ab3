"""Store outputs that are no tables: the report's page and the checkpoint's folder, each with a stamp.

A model's folder also has a record of its training: steps, settings and batches, sealed with a digest. It contains
times, so the model's content excludes it.
"""

import hashlib
import json
import logging
import shutil
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from gateau_dagster.errors import GateauError, gateau_command
from gateau_dagster.storage.content import RECORDS, file_digests, model_content
from gateau_dagster.storage.failures import readable_failures
from gateau_dagster.storage.fence import Fence
from gateau_dagster.storage.files import Files, local_copy
from gateau_dagster.storage.local import copy_folder, flush_folder, moves_into, recall, remember
from gateau_dagster.storage.stamp import Stamp, sealed, unsealed
from gateau_dagster.storage.store import DamagedTableError, Store, local_version

STAMP_FILE = "gateau.json"
NOTE_ENDING = ".version"
_READERS = 8
# Folders that this process has read, with their content and their files' sizes and times.
_as_written: set[tuple[Any, ...]] = set()


def write_document(store: Store, name: str, text: str, stamp: Stamp) -> None:
    """Replace `<root>/<name>`, then its stamp, so that an interrupted write is done again.

    Args:
        stamp: its `files` are those that the document loads, as `beside` has them.
    """
    data = text.encode("utf-8")
    store.files.write(name, data)
    complete = replace(stamp, content=hashlib.sha256(data).hexdigest())
    store.files.write(_document_stamp(name), complete.to_json().encode())


def document_stamp(store: Store, name: str, cache: Path | None = None) -> Stamp | None:
    """Return the stamp of a document; None if the document, its stamp, or a file that it loads is missing or damaged.

    Args:
        store: that holds the document.
        name: of the document.
        cache: see `beside`.
    """
    stamp = _read_stamp(store, _document_stamp(name))
    if stamp is None:
        return None
    try:
        if not _is_whole(stamp, store.files.read(name)):
            return None
    except FileNotFoundError:
        return None
    for folder in sorted({file.rpartition("/")[0] for file in stamp.files}):
        present = beside(store.files, folder, cache)
        if any(present.get(file) != version for file, version in stamp.files.items() if file.startswith(f"{folder}/")):
            return None
    return stamp


def loaded_files(store: Store, name: str) -> Mapping[str, str]:
    """Return the files that a document in the store loads, with their versions when written; empty without a stamp."""
    stamp = _read_stamp(store, _document_stamp(name))
    return {} if stamp is None else stamp.files


def beside(files: Files, folder: str, cache: Path | None = None) -> dict[str, str]:
    """Return the version of each file in a folder of a store, by its name in the store.

    A version is the MD5 (hex) of the content. On S3 it is the ETag, which equals the MD5 for an object written by one
    request and without a key of KMS.

    Args:
        files: of the store.
        folder: in the store.
        cache: JSON file with known versions: a local file is not read again while its size and times stay. None: all
            are read.

    Raises:
        GateauError, TransientError: for the reasons of `Files.write`.
    """
    if not files.is_local:
        return {name: tag.strip('"') for name, tag in files.versions(folder).items()}
    address = files.address(folder)
    known: Mapping[str, Any] = (recall(cache, address) if cache is not None else None) or {}
    with readable_failures(f"read {address}"):
        paths = sorted(path for path in Path(address).glob("*") if path.is_file())
        times = {path.name: local_version(path.stat()) for path in paths}
        unknown = [path for path in paths if not times[path.name] or known.get(path.name, [""])[0] != times[path.name]]
        with ThreadPoolExecutor(_READERS) as pool:
            fresh = pool.map(lambda path: content_version(path.read_bytes()), unknown)
            read = dict(zip((path.name for path in unknown), fresh, strict=True))
    versions = {name: read[name] if name in read else known[name][1] for name in times}
    if cache is not None and any(times[name] for name in read):
        remember(cache, address, {name: [times[name], versions[name]] for name in times if times[name]})
    return {f"{folder}/{name}": version for name, version in versions.items()}


def content_version(data: bytes) -> str:
    """Return the version that `beside` gives a local file with this content."""
    return hashlib.md5(data, usedforsecurity=False).hexdigest()


def read_document(store: Store, name: str) -> str:
    """Return the text of a document.

    Raises:
        DamagedTableError: the text differs from what was written.
        GateauError: the document does not exist.
    """
    address = store.files.address(name)
    try:
        data, stamp = store.files.read(name), _read_stamp(store, _document_stamp(name))
    except FileNotFoundError as error:
        raise GateauError(
            "storage.not_computed", f"{address} does not exist yet. Run `{gateau_command('run')}` to compute it."
        ) from error
    if stamp is not None and not _is_whole(stamp, data):
        raise DamagedTableError("storage.damaged", f"{address} is damaged. Run again: only this file is recomputed.")
    return data.decode("utf-8")


def _is_whole(stamp: Stamp, data: bytes) -> bool:
    # Stamps of early releases contain no digest.
    return stamp.content in ("", hashlib.sha256(data).hexdigest())


def publish_folder(store: Store, folder: Path, name: str, stamp: Stamp) -> None:
    """Move a finished local folder to the store's `<root>/<name>/`; afterwards `folder` is gone.

    Locally the last step is a rename, before which the lease is proved; after a kill before it, `finish_publishing`
    completes the work. S3 has no such step. There the stamp is removed first and written last, and a folder without a
    stamp counts as missing; `folder` stays until then.
    """
    with readable_failures(f"write {store.files.address(name)}"):
        if store.files.is_local:
            fence = store.files.fence
            _stage(folder, Path(store.files.address(name)), stamp, fence)
            with fence.committing():
                _swap(Path(store.files.address(name)))
            return
    remove_folder(store, name)
    for file in sorted(path for path in folder.rglob("*") if path.is_file()):
        store.files.upload(f"{name}/{file.relative_to(folder).as_posix()}", file)
    store.files.write(f"{name}/{STAMP_FILE}", stamp.to_json().encode())
    _discard(folder)


def finish_publishing(store: Store, name: str) -> None:
    """Complete a `publish_folder` that was killed: keep the new folder if it is whole, else restore the old one."""
    if not store.files.is_local:
        return
    target = Path(store.files.address(name))
    with readable_failures(f"write {target}"), store.files.fence.committing():
        if (_staged(target) / STAMP_FILE).exists():
            _swap(target)
        elif _aside(target).exists() and not target.exists():
            _aside(target).rename(target)


def remove_folder(store: Store, name: str) -> None:
    """Remove a published folder; after a kill, the rest has no stamp and counts as missing."""
    store.files.remove(f"{name}/{STAMP_FILE}")
    store.files.remove(name)


def folder_stamp(store: Store, name: str) -> Stamp | None:
    """Return the stamp of a published folder; None if it is missing or incomplete."""
    return _read_stamp(store, f"{name}/{STAMP_FILE}")


def changed_records(store: Store, name: str) -> list[str]:
    """Return the README.md and training_log.json of a published model that differ from what its training wrote.

    A removed file does not count, and those of a model of an earlier release are unknown.

    Raises:
        GateauError, TransientError: for the reasons of `Files.write`.
    """
    stamp, changed = folder_stamp(store, name), []
    for file in sorted(RECORDS.intersection(() if stamp is None else stamp.files)):
        with suppress(FileNotFoundError):
            data = store.files.read(f"{name}/{file}")
            if stamp is not None and hashlib.sha256(data).hexdigest() != stamp.files[file]:
                changed.append(file)
    return changed


def fetched_folder(store: Store, name: str, scratch: Path) -> Path:
    """Return a published folder on this machine, verified: itself on a local store, else a copy.

    The copy is kept in `scratch` for later calls. A damaged copy is fetched again first. If the store's own folder is
    damaged, it loses its stamp, so that it counts as missing.

    Raises:
        DamagedTableError: a file in the store differs, or is missing.
        GateauError, TransientError: for the reasons of `Files.write`. FileNotFoundError: there is no such folder.
    """
    stamp = folder_stamp(store, name)
    folder = _kept_copy(store, name, scratch, "" if stamp is None else stamp.content)
    if stamp is None or _is_as_written(folder, stamp):
        return folder
    if not store.files.is_local:
        _note(scratch, name).unlink(missing_ok=True)
        if _is_as_written(_kept_copy(store, name, scratch, stamp.content), stamp):
            return folder
    found = file_digests(folder)
    others = sorted(file for file in {*stamp.files, *found} - RECORDS if stamp.files.get(file) != found.get(file))
    which = ", ".join(others) if stamp.files else "one of its files"
    aside = f"{name}/{STAMP_FILE}.damaged"
    store.files.rename(f"{name}/{STAMP_FILE}", aside)
    raise DamagedTableError(
        "storage.damaged",
        f"{store.files.address(name)} is damaged: {which}. The next run recomputes it. If you have a copy, put it "
        f"back and rename {store.files.address(aside)} to {STAMP_FILE} instead.",
    )


def _kept_copy(store: Store, name: str, scratch: Path, content: str) -> Path:
    """Return the folder, or its copy in `scratch`; a note beside the copy names its content."""
    if store.files.is_local:
        return local_copy(store.files, name, scratch)
    note = _note(scratch, name)
    if content and note.is_file() and note.read_bytes() == content.encode():
        return scratch / name
    note.unlink(missing_ok=True)
    folder = local_copy(store.files, name, scratch)
    note.write_text(content)
    return folder


def _note(scratch: Path, name: str) -> Path:
    return scratch / f"{name}{NOTE_ENDING}"


def _is_as_written(folder: Path, stamp: Stamp) -> bool:
    """Return whether each file has the content that the stamp names; read once per process while size and time stay."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    seen = (folder, stamp.content, *((file, file.stat().st_size, file.stat().st_mtime_ns) for file in files))
    if seen not in _as_written and model_content(file_digests(folder)) == stamp.content:
        _as_written.add(seen)
    return seen in _as_written


def _read_stamp(store: Store, name: str) -> Stamp | None:
    try:
        data = store.files.read(name)
    except FileNotFoundError:
        return None
    try:
        return Stamp.from_json(data)
    except ValueError:
        return None


def _document_stamp(name: str) -> str:
    return f"{name}.stamp.json"


def _staged(target: Path) -> Path:
    return target.with_name(f".{target.name}.new")


def _aside(target: Path) -> Path:
    return target.with_name(f".{target.name}.old")


def _stage(new: Path, target: Path, stamp: Stamp, fence: Fence) -> None:
    """Move the folder next to its target, on the same disk, with its stamp, which marks it as whole.

    Before the lease is proved, its name contains the lease's number, which a take-over removes: see `fence`.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    if not fence.tokens:
        _bring(new, target, stamp, _staged(target))
        return
    own = target.with_name(f".{target.name}.{fence.mark}.new")
    _bring(new, target, stamp, own)
    with fence.committing():
        if _staged(target).exists():
            _discard(_staged(target))
        own.rename(_staged(target))


def _bring(new: Path, target: Path, stamp: Stamp, staged: Path) -> None:
    if staged.exists():
        _discard(staged)
    if new.stat().st_dev == target.parent.stat().st_dev and moves_into(new, target.parent):
        _write_stamp(new, stamp)
        new.rename(staged)
        return
    copy_folder(new, staged)
    _write_stamp(staged, stamp)
    flush_folder(staged)
    _discard(new)


def _write_stamp(folder: Path, stamp: Stamp) -> None:
    temporary = folder / f".{STAMP_FILE}.tmp"
    temporary.write_text(stamp.to_json())
    temporary.replace(folder / STAMP_FILE)


def _swap(target: Path) -> None:
    """Move the staged folder to its target; the old one is renamed first, since a full folder cannot be replaced."""
    old = _aside(target)
    if target.exists():
        if old.exists():
            shutil.rmtree(old)
        target.rename(old)
    try:
        _staged(target).rename(target)
    except FileNotFoundError:  # the new owner of the store has moved both folders
        if old.exists() and not target.exists():
            old.rename(target)
        raise
    if old.exists():
        shutil.rmtree(old)


def _discard(folder: Path) -> None:
    """Remove a folder; it is renamed first, so that half of it is never taken for the whole."""
    doomed = folder.with_name(f".{folder.name}.discarded")
    if doomed.exists():
        shutil.rmtree(doomed)
    folder.rename(doomed)
    shutil.rmtree(doomed)


RECORD_NAME = "training_log.json"
_log = logging.getLogger(__name__)


def read_training_log(store: Store, name: str = "checkpoint") -> list[dict[str, Any]]:
    """Return the metrics of each step of the training of a published model; empty without a complete record."""
    return read_training_record(store, name).get("steps", [])


def read_training_record(store: Store, name: str) -> dict[str, Any]:
    """Return the record of a published model; empty if it is missing, or damaged, which is logged."""
    try:
        data = store.files.read(f"{name}/{RECORD_NAME}")
    except FileNotFoundError:
        return {}
    return _whole(data, store.files.address(f"{name}/{RECORD_NAME}"))


def local_training_record(folder: Path) -> dict[str, Any]:
    """Return the record like `read_training_record`, for a model in a local folder."""
    path = folder / RECORD_NAME
    return _whole(path.read_bytes(), str(path)) if path.exists() else {}


def record_bytes(record: Mapping[str, Any]) -> bytes:
    """Return the content of the record's file."""
    return json.dumps(sealed(record), indent=1).encode()


def _whole(data: bytes, address: str) -> dict[str, Any]:
    try:
        return unsealed(data)
    except ValueError:
        _log.warning(f"{address} is damaged and treated as missing. If you have a copy, put it back.")
        return {}
