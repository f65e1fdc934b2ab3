"""Data as scripts: a page that is opened from a disk may load scripts, and no other file."""

import hashlib
import json
from typing import Any

FOLDER = "explore"


def as_json(content: Any) -> str:
    """JSON that may stand in a script, inside a page or on its own, and ends neither."""
    text = json.dumps(content, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def as_script(name: str, content: Any) -> bytes:
    """The file that hands `content` to the page when it is loaded under this name."""
    return f"explorer.take({as_json(name)},{as_json(content)});\n".encode()


def named_by_content(kind: str, content: Any) -> str:
    """A file's name: another content has another one, so that a page never finds newer data than its own."""
    return f"{kind}-{hashlib.sha256(as_json(content).encode()).hexdigest()[:16]}.js"
