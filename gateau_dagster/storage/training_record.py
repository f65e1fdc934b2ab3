"""Read the record of a training in its model's folder: steps, settings and batches, sealed with a digest.

It contains times, so the model's content excludes it.
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
