"""A benchmark of labelled kinds in the demo's language: which responses need what theta_A cannot see?

The five kinds of the demo (`samples.py`) are its base; here are the controlled ones, the design's harder set, and those
built to break `far_gain`. The contexts of all kinds have the same lengths and, unless that is what a kind varies, the
same number of facts that nobody asks for, so that neither tells the kinds apart. What each kind is, and why it has its
label, stands with it in KINDS; those that are not `within_reach` are beyond the embedded pair.
"""

from collections.abc import Sequence

import numpy as np
from common_kind import Kind
from common_page import SIZES, Page
from kinds_breaking import BREAKING
from kinds_controlled import CONTROLLED
from kinds_harder import HARDER

from gateau_dagster.demo.long_samples import FAR_KINDS
from gateau_dagster.demo.long_samples import KINDS as BASE_KINDS

KINDS: dict[str, Kind] = {kind.name: kind for kind in (*CONTROLLED, *HARDER, *BREAKING)}

# Part of the seed, so that index i of two sizes is not the same sample with another length.
_SIZE_CODES = {name: number for number, name in enumerate(SIZES, start=1)}


def needs_far_context(source: str) -> bool:
    """The label of a sample, from its `source`: a kind of this set or of the demo's. KeyError for another."""
    return source in FAR_KINDS if source in BASE_KINDS else KINDS[source].needs_far_context


def harder_samples(
    count: int, seed: int, *, size: str = "medium", kinds: Sequence[str] | None = None
) -> list[dict[str, str]]:
    """`count` records with id, source (the kind), context, instruction and response; the kinds take turns.

    `size` names one of SIZES; `kinds`: those of KINDS to make, all by default. A record is decided by seed, index,
    size and kind: a larger set begins with the smaller one. ValueError for an unknown size or kind.
    """
    if size not in SIZES:
        raise ValueError(f"no size {size!r}: one of {', '.join(SIZES)}")
    names = list(KINDS) if kinds is None else list(kinds)
    unknown = sorted(set(names) - set(KINDS))
    if unknown or not names:
        raise ValueError(f"no kinds {', '.join(unknown)}: they are {', '.join(KINDS)}")
    return [_sample(index, seed, size, KINDS[names[index % len(names)]]) for index in range(count)]


def _sample(index: int, seed: int, size: str, kind: Kind) -> dict[str, str]:
    rng = np.random.default_rng((seed, index, _SIZE_CODES[size]))
    parts = kind.make(Page.blank(rng, SIZES[size]))
    return {
        "id": f"{size}-{seed}-{index:05d}",
        "source": kind.name,
        "context": " ".join(parts.context),
        "instruction": " ".join(parts.instruction),
        "response": " ".join(parts.response),
    }
