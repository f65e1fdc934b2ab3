"""Content digests of whole files, remembered by size and modification time: a touched file is not a changed one."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

from gateau_dagster.data.sample import text_digest
from gateau_dagster.data.sources import SourceFile
from gateau_dagster.storage.failures import readable_input
from gateau_dagster.storage.remote import is_remote


def content_signature(files: Sequence[SourceFile], cache: Path) -> str:
    """SHA-256 (hex) over name and content of each file, in order; no local file is read twice while it is unchanged.

    Remote files are known by their stamp, which S3 and the hub derive from the content. `cache` is a JSON file.
    """
    known = _load(cache)
    fresh = {
        file.address: [file.size, file.stamp, _content(file, known)] for file in files if not is_remote(file.address)
    }
    if any(known.get(address) != entry for address, entry in fresh.items()):
        _save({**known, **fresh}, cache)
    parts = [str(fresh[file.address][2]) if file.address in fresh else file.stamp for file in files]
    return text_digest([part for file, content in zip(files, parts, strict=True) for part in (file.name, content)])


def _content(file: SourceFile, known: dict[str, list[int | str]]) -> str:
    size, stamp, digest = known.get(file.address, [-1, "", ""])
    if (size, stamp) == (file.size, file.stamp):
        return str(digest)
    with readable_input(file.address), Path(file.address).open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _load(cache: Path) -> dict[str, list[int | str]]:
    try:
        return json.loads(cache.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return {}  # no cache yet, or a damaged one: it is rebuilt


def _save(known: dict[str, list[int | str]], cache: Path) -> None:
    cache.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=cache.parent, prefix=f".{cache.name}.")
    with os.fdopen(handle, "w", encoding="utf-8") as stream:
        json.dump(known, stream)
    Path(temporary).replace(cache)
