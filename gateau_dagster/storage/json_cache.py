"""Measurements kept between commands: small JSON files in the work folder, safe to delete and rebuilt if damaged."""

import json
import os
from pathlib import Path
from typing import Any


def recall(file: Path, key: str) -> Any:
    """What was remembered under `key`; None when nothing was, or the file is missing or damaged."""
    return _content(file).get(key)


def remember(file: Path, key: str, value: Any) -> None:
    """Keeps a JSON value; a reader sees the old file or the new one. A folder that cannot be written costs the memory.

    Two processes that write at once may lose one of the values, which is then measured again.
    """
    temporary = file.with_suffix(f".{os.getpid()}.tmp")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_text(json.dumps({**_content(file), key: value}, indent=1), encoding="utf-8")
        temporary.replace(file)
    except OSError:
        return


def _content(file: Path) -> dict[str, Any]:
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}
