"""Cache measurements and digests between commands: small JSON files, safe to delete and rebuilt if damaged."""

import json
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from gateau_dagster.errors import GateauError
from gateau_dagster.storage.failures import readable_failures
from gateau_dagster.storage.local import check_regular, fill_with, replace_local
from gateau_dagster.storage.stamp import fingerprint

_DIGEST, _VALUES = "digest", "values"
_log = logging.getLogger(__name__)
_told: set[Path] = set()


@contextmanager
def keeping(file: Path) -> Iterator[None]:
    """Write a cache within the block; a failure is logged once per folder and process, and stops nothing."""
    try:
        with readable_failures(f"write the cache of measurements in {file.parent}"):
            yield
    except (GateauError, OSError) as error:
        if file.parent not in _told:
            _log.warning(f"{error} Until then, every command reads all input and all models again.")
        _told.add(file.parent)


def recall(file: Path, key: str) -> Any:
    """Return the value under `key`; None if it is unknown, or the file is missing or damaged."""
    return recall_all(file).get(key)


def recall_all(file: Path) -> dict[str, Any]:
    """Return all values by key; empty if the file is missing or damaged."""
    try:
        check_regular(file)
        content = json.loads(file.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    values = content.get(_VALUES) if isinstance(content, dict) else None
    if not isinstance(values, dict) or content.get(_DIGEST) != fingerprint(values):
        return {}
    return values


def remember(file: Path, key: str, value: Any) -> None:
    """Store a JSON value; see `remember_all`."""
    remember_all(file, {key: value})


def remember_all(file: Path, values: Mapping[str, Any]) -> None:
    """Store JSON values by key; a reader sees the old file or the new one. An unwritable folder is logged (`keeping`).

    If two processes write at once, one's values may be lost, and are measured again.
    """
    # The values take the form in which they are read: keys as texts, tuples as lists.
    known = json.loads(json.dumps({**recall_all(file), **values}))
    content = json.dumps({_DIGEST: fingerprint(known), _VALUES: known}, indent=1)
    with keeping(file):
        replace_local(file, partial(fill_with, data=content.encode()))
