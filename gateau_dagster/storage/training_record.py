"""The record of a training in its model's folder: steps, settings and batches, with a digest of themselves.

It holds times, so that it is no part of the model's content.
"""

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gateau_dagster.storage.sealed_json import sealed, unsealed
from gateau_dagster.storage.store import Store

RECORD_NAME = "training_log.json"
_log = logging.getLogger(__name__)


def read_training_log(store: Store, name: str = "checkpoint") -> list[dict[str, Any]]:
    """The metrics of each step of the training that made a published model; none where it has no whole record."""
    return read_training_record(store, name).get("steps", [])


def read_training_record(store: Store, name: str) -> dict[str, Any]:
    """The record of a published model; empty where there is none, or a damaged one, which is said."""
    try:
        data = store.files.read(f"{name}/{RECORD_NAME}")
    except FileNotFoundError:
        return {}
    return _whole(data, store.files.address(f"{name}/{RECORD_NAME}"))


def local_training_record(folder: Path) -> dict[str, Any]:
    """As `read_training_record`, of a model in a folder."""
    path = folder / RECORD_NAME
    return _whole(path.read_bytes(), str(path)) if path.exists() else {}


def record_bytes(record: Mapping[str, Any]) -> bytes:
    """What the file holds."""
    return json.dumps(sealed(record), indent=1).encode()


def _whole(data: bytes, address: str) -> dict[str, Any]:
    try:
        return unsealed(data)
    except ValueError:
        _log.warning(f"{address} is damaged and counts as missing. If you have a copy of it, put that back.")
        return {}
