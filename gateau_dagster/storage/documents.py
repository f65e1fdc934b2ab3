"""Outputs that are no tables: the report's page and the checkpoint's folder, each with a stamp beside its content."""

import json
import shutil
from pathlib import Path
from typing import Any

from gateau_dagster.storage.stamp import Stamp
from gateau_dagster.storage.store import Store

_FOLDER_STAMP = "gateau.json"


def write_document(store: Store, name: str, text: str, stamp: Stamp) -> None:
    """Replaces `<root>/<name>`; the stamp is written last, so that an interrupted write is done again."""
    store.files.write(name, text.encode("utf-8"))
    store.files.write(_document_stamp(name), stamp.to_json().encode())


def document_stamp(store: Store, name: str) -> Stamp | None:
    """The stamp of a document; None when either file is missing."""
    return _read_stamp(store, _document_stamp(name)) if store.files.exists(name) else None


def publish_folder(store: Store, folder: Path, name: str, stamp: Stamp) -> None:
    """Makes a finished local folder the store's `<root>/<name>/`.

    Locally the folder is renamed, in one step. S3 has no such step: the stamp goes first and comes back last, and a
    folder without a stamp counts as missing.
    """
    (folder / _FOLDER_STAMP).write_text(stamp.to_json())
    if store.files.is_local:
        _swap(folder, Path(store.files.address(name)))
        return
    store.files.remove(f"{name}/{_FOLDER_STAMP}")
    store.files.remove(name)
    for file in sorted(folder.rglob("*"), key=lambda path: (path.name == _FOLDER_STAMP, str(path))):
        if file.is_file():
            store.files.write(f"{name}/{file.relative_to(folder).as_posix()}", file.read_bytes())


def folder_stamp(store: Store, name: str) -> Stamp | None:
    """The stamp of a published folder; None when it is missing or incomplete."""
    return _read_stamp(store, f"{name}/{_FOLDER_STAMP}")


def read_training_log(store: Store, name: str = "checkpoint") -> list[dict[str, Any]]:
    """The metrics of each step of the training that made a published model; none when there is no model."""
    try:
        return json.loads(store.files.read(f"{name}/training_log.json"))["steps"]
    except FileNotFoundError:
        return []


def _read_stamp(store: Store, name: str) -> Stamp | None:
    try:
        return Stamp.from_json(store.files.read(name))
    except (FileNotFoundError, ValueError):
        return None


def _document_stamp(name: str) -> str:
    return f"{name}.stamp.json"


def _swap(new: Path, target: Path) -> None:
    """Puts `new` in the place of `target`; the old one steps aside first, since a full folder cannot be replaced."""
    target.parent.mkdir(parents=True, exist_ok=True)
    staged, old = target.with_name(f".{target.name}.new"), target.with_name(f".{target.name}.old")
    for leftover in (staged, old):
        if leftover.exists():
            shutil.rmtree(leftover)
    shutil.move(str(new), str(staged))  # copies when `new` is on another disk, hence the second name
    if target.exists():
        target.rename(old)
    staged.rename(target)
    if old.exists():
        shutil.rmtree(old)
