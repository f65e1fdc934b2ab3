"""Fingerprints: digests of what an output is made from."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any


def fingerprint(parts: Mapping[str, Any]) -> str:
    """32 hex digits of SHA-256 over the canonical JSON of `parts`; equal parts give equal digests in any process."""
    text = json.dumps(parts, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def joint(versions: Mapping[str, str]) -> str:
    """One digest for many versions by name (the shards of a table)."""
    return fingerprint(dict(versions))
