"""JSON objects with a digest of themselves inside, so that no flipped bit is taken for what was written."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

_DIGEST = "digest"


def sealed(content: Mapping[str, Any], key: str = _DIGEST) -> dict[str, Any]:
    """The object with its digest under `key`. A number that is not finite stays one, as Python writes it."""
    as_read = json.loads(json.dumps(content))  # keys are texts
    return {key: _digest(as_read), **as_read}


def unsealed(data: str | bytes, key: str = _DIGEST) -> dict[str, Any]:
    """What was sealed under `key`; an object without a digest, as files of old have it, is taken as it is.

    Raises:
        ValueError: it is no JSON object, or another one than was written.
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
