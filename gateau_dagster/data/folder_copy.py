"""A folder on S3 or the hub as one on this machine, for libraries that read nothing else."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path, PurePosixPath
from typing import Any

from gateau_dagster.data.sample import text_digest
from gateau_dagster.errors import GateauError
from gateau_dagster.storage.failures import readable_failures, readable_input
from gateau_dagster.storage.remote import HUB, S3, filesystem


def folder_copy(address: str, below: Path) -> Path:
    """All files under a remote address, in a folder of `below` that is named by what they hold; copied once.

    Raises GateauError or TransientError where there are none, or they cannot be read or written.
    """
    with readable_input(address):
        fs: Any = filesystem(address)
        root = address.removeprefix(S3).removeprefix(HUB).rstrip("/")
        found = {name: info for name, info in fs.find(root, detail=True).items() if info["type"] == "file"}
    if not found:
        raise GateauError(f"Cannot read {address}: there are no files. Check the address and AWS_ENDPOINT_URL.")
    stamps = (
        f"{name} {info.get('ETag') or info.get('blob_id')} {info['size']}" for name, info in sorted(found.items())
    )
    target = below / text_digest(list(stamps))[:32]
    if not target.is_dir():
        with readable_failures(f"write {target}"):
            below.mkdir(parents=True, exist_ok=True)
            part = Path(tempfile.mkdtemp(dir=below))
        try:
            with readable_input(address):
                for name in found:
                    file = part / PurePosixPath(name).relative_to(root)
                    file.parent.mkdir(parents=True, exist_ok=True)
                    fs.get_file(name, str(file))
            _publish(part, target)
        finally:
            shutil.rmtree(part, ignore_errors=True)
    return target


def _publish(part: Path, target: Path) -> None:
    """Gives the whole copy its name, unless another process was faster."""
    try:
        part.replace(target)
    except OSError:
        if not target.is_dir():
            raise
