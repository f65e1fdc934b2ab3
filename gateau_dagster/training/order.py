"""The order in which sequences are trained on: a function of their ids, the epoch and the seed."""

import hashlib
from collections.abc import Sequence


def _place(*key: object) -> bytes:
    return hashlib.sha256("/".join(str(part) for part in key).encode("utf-8", errors="surrogatepass")).digest()


def mix_order(keys: Sequence[tuple[str, str]], seed: int) -> list[int]:
    """Indices of `keys` (origin, sample_id) shuffled by hash: two of them keep their order whatever else is there."""
    return sorted(range(len(keys)), key=lambda index: _place("mix", seed, *keys[index]))


def epoch_order(count: int, *, epoch: int, seed: int) -> list[int]:
    """Rows 0..count-1 in the order of `epoch`: the mix's own order at first, reshuffled in every later one."""
    if epoch == 0:
        return list(range(count))
    return sorted(range(count), key=lambda row: _place("epoch", seed, epoch, row))
