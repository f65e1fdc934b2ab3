"""Store JSON objects with a digest of themselves, which detects every flipped bit."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

_DIGEST = "digest"


def sealed(content: Mapping[str, Any], key: str = _DIGEST) -> dict[str, Any]:
    """Return the object with its digest under `key`. Infinity and NaN are kept, as Python writes them."""
    as_read = json.loads(json.dumps(content))  # keys are texts
    return {key: _digest(as_read), **as_read}


def unsealed(data: str | bytes, key: str = _DIGEST) -> dict[str, Any]:
    """Return the content sealed under `key`; an object without a digest, from an old release, is accepted unchanged.

    Raises:
        ValueError: it is no JSON object, or differs from what was written.
    """
    try:
        content = json.loads(data)
    except RecursionError as error:
        raise ValueError("no object") from error
    if not isinstance(content, dict):
        raise ValueError("no object")
    digest = content.pop(key, None)
    if digest is not None and digest != _digest(content):
        raise ValueError("not as it was written")
    return content


def _digest(content: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]
