"""Index of the hashes of many texts of any number and length, as sorted arrays that many lookups search at once."""

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
    """Hashes and the texts that have them: at most 24 bytes for each pair.

    hashes: the different ones, ascending. starts: where those with the same first bits begin, and where the last end.
    owners: the numbers of the texts that have the first hash, the second and so on, ascending for each.
    firsts: where the owners of each hash begin, and where the last end.
    """

    hashes: Hashes
    starts: Places
    owners: Places
    firsts: Places

    @classmethod
    def of(cls, texts: Sequence[Hashes]) -> HashIndex:
        """Build the index from each text's distinct hashes. There must be fewer than 2^32 in all."""
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
        """Return the texts that have some of `wanted`, ascending, and how many different ones each has."""
        return np.unique(self.owners[self.entries(self._places(wanted))], return_counts=True)

    def entries(self, places: npt.NDArray[Any]) -> Places:
        """Return the indices into `owners` of the hashes at these places, one hash after the other."""
        begins, ends = self.firsts[places], self.firsts[places + 1]
        # Concatenate the ranges from each begin to its end.
        shifts = np.repeat(ends - np.cumsum(ends - begins, dtype=np.uint32), ends - begins)
        return shifts + np.arange(shifts.size, dtype=np.uint32)

    def without(self, entries: Places) -> HashIndex:
        """Return an index without these entries of `owners`."""
        kept = np.ones(self.owners.size, dtype=np.bool_)
        kept[entries] = False
        before = np.zeros(kept.size + 1, dtype=np.uint32)
        np.cumsum(kept, dtype=np.uint32, out=before[1:])
        return replace(self, owners=self.owners[kept], firsts=before[self.firsts])

    def _places(self, wanted: Hashes) -> Places:
        """Return the places of the hashes of `wanted` that the index holds, each once."""
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
