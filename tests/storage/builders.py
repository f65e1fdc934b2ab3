"""A small table and its stamp, and bits that flip."""

import random
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import polars as pl
import pytest

from gateau_dagster.storage import Stamp

FRAME = pl.DataFrame({"sample_id": ["a", "b"], "values": [[1.0], []], "cas": [0.5, None]})
REJECTED = pl.DataFrame({"sample_id": ["z"], "reason": ["no response"]})
STAMP = Stamp(fingerprint="f1", inputs={"settings": {"x": [1, None]}, "upstream": {"raw": "d"}}, scorer="s1")


def flipped(data: bytes, bit: int) -> bytes:
    changed = bytearray(data)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


@contextmanager
def mounted_disk(folder: Path, size: str) -> Iterator[Path]:
    """Give a new folder a file system of its own in memory; skip the test where none can be mounted."""
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
    try:
        mounted = subprocess.run(command, capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        mounted = False
    if not mounted:
        pytest.skip("no small disk can be mounted here")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def flips(data: bytes, number: int, seed: int = 0) -> list[bytes]:
    rng = random.Random(seed)
    return [flipped(data, rng.randrange(len(data) * 8)) for _ in range(number)]
