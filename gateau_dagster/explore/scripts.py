"""Write data as scripts, because a page opened from a disk may load scripts but no other files."""

import hashlib
import json
from typing import Any

FOLDER = "explore"


def as_json(content: Any) -> str:
    """Return JSON that can be put in a script, inside a page or on its own, and ends neither."""
    text = json.dumps(content, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def as_script(name: str, content: Any) -> bytes:
    """Return the file that passes `content` to the page when it is loaded under this name."""
    return f"explorer.take({as_json(name)},{as_json(content)});\n".encode()


def named_by_content(kind: str, content: Any) -> str:
    """Return a file's name, which changes with its content, so that a page never finds newer data than its own."""
    return f"{kind}-{hashlib.sha256(as_json(content).encode()).hexdigest()[:16]}.js"
