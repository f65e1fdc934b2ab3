"""Which of many texts have a hash, for texts of any number and length: sorted arrays, looked into many at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from gateau_dagster.evaluation.contamination.words import Hashes

Places = npt.NDArray[np.uint32]


@dataclass(frozen=True, kw_only=True, eq=False)
class HashIndex:
    """Of hashes and the texts that have them: at most 24 bytes for each pair.

    hashes: the different ones, rising. starts: where those with the same first bits begin, and where the last end.
    owners: the numbers of the texts that have the first hash, the second and so on, rising for each. firsts: where the
    owners of each hash begin, and where the last end.
    """

    hashes: Hashes
    starts: Places
    owners: Places
    firsts: Places

    @classmethod
    def of(cls, texts: Sequence[Hashes]) -> HashIndex:
        """The texts' hashes, each text's distinct. Fewer than 2^32 in all."""
        every = np.concatenate([*texts, np.zeros(0, dtype=np.uint64)])
        order = np.argsort(every, kind="stable")
        every = every[order]
        owners = np.repeat(np.arange(len(texts), dtype=np.uint32), [text.size for text in texts])[order]
        del order
        firsts = np.flatnonzero(np.append(True, every[1:] != every[:-1])[: every.size]).astype(np.uint32)
        hashes, firsts = every[firsts], np.append(firsts, np.uint32(every.size))
        del every
        bits = max(1, hashes.size.bit_length())
        counts = np.bincount((hashes >> np.uint64(64 - bits)).view(np.int64), minlength=1 << bits)
        starts = np.zeros(counts.size + 1, dtype=np.uint32)
        np.cumsum(counts, dtype=np.uint32, out=starts[1:])
        return cls(hashes=hashes, starts=starts, owners=owners, firsts=firsts)

    def common(self, wanted: Hashes) -> tuple[Places, npt.NDArray[Any]]:
        """The texts that have some of `wanted`, rising, and how many different ones each has."""
        return np.unique(self.owners[self.entries(self._places(wanted))], return_counts=True)

    def entries(self, places: npt.NDArray[Any]) -> Places:
        """Where the owners stand of the hashes at these places, one hash after the other."""
        begins, ends = self.firsts[places], self.firsts[places + 1]
        # The numbers from each begin to its end.
        shifts = np.repeat(ends - np.cumsum(ends - begins, dtype=np.uint32), ends - begins)
        return shifts + np.arange(shifts.size, dtype=np.uint32)

    def without(self, entries: Places) -> HashIndex:
        """Where these owners no longer have the hashes at which they stand."""
        kept = np.ones(self.owners.size, dtype=np.bool_)
        kept[entries] = False
        before = np.zeros(kept.size + 1, dtype=np.uint32)
        np.cumsum(kept, dtype=np.uint32, out=before[1:])
        return replace(self, owners=self.owners[kept], firsts=before[self.firsts])

    def _places(self, wanted: Hashes) -> Places:
        """Of those of `wanted` that are here, each once."""
        bits = (self.starts.size - 1).bit_length() - 1
        same = (wanted >> np.uint64(64 - bits)).astype(np.int64)
        at, end = self.starts.take(same), self.starts.take(same + 1)
        found = [at[:0]]
        while at.size:
            inside = np.flatnonzero(at < end)
            at, end, wanted = at.take(inside), end.take(inside), wanted.take(inside)
            here = self.hashes.take(at)
            found.append(at[here == wanted])
            further = np.flatnonzero(here < wanted)
            at, end, wanted = at.take(further) + np.uint32(1), end.take(further), wanted.take(further)
        return np.unique(np.concatenate(found))
