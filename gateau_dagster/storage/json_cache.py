"""What was measured or read, kept between commands: small JSON files, safe to delete and rebuilt if damaged."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def recall(file: Path, key: str) -> Any:
    """What was remembered under `key`; None when nothing was, or the file is missing or damaged."""
    return recall_all(file).get(key)


def recall_all(file: Path) -> dict[str, Any]:
    """All that was remembered, by key; nothing when the file is missing or damaged."""
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def remember(file: Path, key: str, value: Any) -> None:
    """Keeps a JSON value; see `remember_all`."""
    remember_all(file, {key: value})


def remember_all(file: Path, values: Mapping[str, Any]) -> None:
    """Keeps JSON values by key; a reader sees the old file or the new one. A folder that cannot be written costs the
    memory.

    Two processes that write at once may lose one's values, which are then measured again.
    """
    temporary = file.with_suffix(f".{os.getpid()}.tmp")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_text(json.dumps({**recall_all(file), **values}, indent=1), encoding="utf-8")
        temporary.replace(file)
    except OSError:
        return
