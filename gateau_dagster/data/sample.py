"""A sample of the long data, its digest and its shard."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property


def text_digest(parts: Sequence[str]) -> str:
    """SHA-256 (hex) of the parts; lengths are hashed too, so that no two lists of parts share a digest."""
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode("utf-8", errors="surrogatepass")
        digest.update(len(data).to_bytes(8, "big"))
        digest.update(data)
    return digest.hexdigest()


@dataclass(frozen=True, kw_only=True)
class Sample:
    """(c, x; y) of the paper: `context`, `instruction` and target `response`."""

    sample_id: str
    source: str
    context: str
    instruction: str
    response: str

    @cached_property
    def digest(self) -> str:
        """Content digest: unchanged samples keep their scores."""
        return text_digest((self.context, self.instruction, self.response))


@dataclass(frozen=True, kw_only=True)
class Reject:
    """A sample that cannot be used, and why; `short_of_memory`: another device may have enough."""

    sample_id: str
    reason: str
    short_of_memory: bool = False


def shard_of(sample_id: str, shards: int) -> int:
    """Stable hash of the id modulo `shards`; the same in every process and on every machine."""
    return (
        int.from_bytes(hashlib.sha256(sample_id.encode("utf-8", errors="surrogatepass")).digest()[:8], "big") % shards
    )


def shard_keys(shards: int) -> list[str]:
    """Partition keys, equally wide so that they sort: 16 shards are '00' to '15'."""
    width = len(str(shards - 1))
    return [f"{shard:0{width}d}" for shard in range(shards)]
