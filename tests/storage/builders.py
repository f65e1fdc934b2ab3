"""A small table and its stamp, and bits that flip."""

import random

import polars as pl

from gateau_dagster.storage import Stamp

FRAME = pl.DataFrame({"sample_id": ["a", "b"], "values": [[1.0], []], "cas": [0.5, None]})
REJECTED = pl.DataFrame({"sample_id": ["z"], "reason": ["no response"]})
STAMP = Stamp(fingerprint="f1", inputs={"settings": {"x": [1, None]}, "upstream": {"raw": "d"}}, scorer="s1")


def flipped(data: bytes, bit: int) -> bytes:
    changed = bytearray(data)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


def flips(data: bytes, number: int, seed: int = 0) -> list[bytes]:
    rng = random.Random(seed)
    return [flipped(data, rng.randrange(len(data) * 8)) for _ in range(number)]
