"""Which shard a sample belongs to: static partitions, so that one edit touches one shard."""

import hashlib


def shard_of(sample_id: str, shards: int) -> int:
    """Stable hash of the id modulo `shards`; the same in every process and on every machine."""
    return (
        int.from_bytes(hashlib.sha256(sample_id.encode("utf-8", errors="surrogatepass")).digest()[:8], "big") % shards
    )


def shard_keys(shards: int) -> list[str]:
    """Partition keys, equally wide so that they sort: 16 shards are '00' to '15'."""
    width = len(str(shards - 1))
    return [f"{shard:0{width}d}" for shard in range(shards)]
