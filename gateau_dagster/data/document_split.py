"""Group samples into documents, and reserve some documents from every selection, so that models never train on them."""

# Why whole documents are reserved: several samples often ask about one document. A split by sample would test the model
# on a document that it was trained on.
#
# Why a hash decides, and no shuffle: a shuffle draws another test set whenever a sample is added, so results before and
# after could not be compared. The price: the reserved share is only roughly `share`, most of all with few documents.

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import polars as pl
from pydantic import Field

from gateau_dagster import tables
from gateau_dagster.config.base import Section
from gateau_dagster.data.near_duplicates import near_duplicates, normalised, shingles, sketch
from gateau_dagster.data.sample import SHORTEST_DOCUMENT

if TYPE_CHECKING:
    from datasketch import LeanMinHash


# Raise it when the same samples are split differently.
CODE_VERSION = "2"
SPLIT = "document_split"
TEXTS = ("sample_id", "context", "instruction", "response")
_SHARE, _SIMILARITY = 0.1, 0.5


class Reserving(Section):
    """Options of a benchmark on reserved samples, which are never selected and therefore new to the checkpoint.

    Default values are left out of the dump, so that configurations without these keys keep their fingerprint.
    """

    share: float = Field(
        default=_SHARE,
        gt=0,
        lt=1,
        description="Share of the different contexts that is reserved, drawn by a hash of each. Their near-duplicates "
        "and all their samples are reserved with them, and no selection takes them.",
        exclude_if=_SHARE.__eq__,
    )
    similarity: float = Field(
        default=_SIMILARITY,
        gt=0,
        le=1,
        description="Share of common shingles (pieces of 32 bytes) from which two contexts are near-duplicates, which "
        "are one document. System texts and definitions of tools do not count.",
        exclude_if=_SIMILARITY.__eq__,
    )


@dataclass(frozen=True, kw_only=True)
class Documents:
    """The documents of samples, collected shard by shard: 1 KiB per document, and a third more during the comparison.

    of: the digest of each sample's document, by sample id. sketches: the MinHash of each document, by digest.
    """

    of: dict[str, str] = field(default_factory=dict)
    sketches: dict[str, LeanMinHash] = field(default_factory=dict)

    def join(self, last: Mapping[str, str]) -> None:
        """Assign to samples the document of their conversation's last sample, which `add` has received."""
        self.of.update({sample_id: self.of[later] for sample_id, later in last.items()})

    def add(self, samples: pl.DataFrame, instructions: Mapping[str, int] | None = None) -> None:
        """Add samples. A sample's document is its context, with its other texts if the context is too short.

        Args:
            samples: rows with the columns TEXTS.
            instructions: by sample id, the number of characters at the context's start that are a system text or tool
                definitions. Samples with different documents share these.
        """
        for sample_id, context, *rest in samples.select(TEXTS).iter_rows():
            document = context[(instructions or {}).get(sample_id, 0) :]
            is_short = len(document) < SHORTEST_DOCUMENT or not document.strip()
            text = normalised(" ".join([document, *rest]) if is_short else document)
            digest = hashlib.sha256(text).hexdigest()
            self.of[sample_id] = digest
            if digest not in self.sketches:
                self.sketches[digest] = sketch(shingles(text))


class OneDocumentError(ValueError):
    """All samples are of one document, so that none can be reserved."""


def split(documents: Documents, *, share: float | None, least: float) -> pl.DataFrame:
    """Return tables.DOCUMENT_SPLIT, sorted by id.

    Near-duplicates (at least `least` similar) are one document, with the smallest of their digests as its name. A
    document is reserved if its name, read as a fraction, is below `share`, whatever other documents there are. Adding a
    text can only reserve the documents that it joins, if its digest is that small; it never frees one. At least one
    document is reserved and at least one is not; without a `share` (None) no document is reserved.

    Raises OneDocumentError if a document is to be reserved and there is only one.
    """
    digests = sorted(documents.sketches)
    groups = near_duplicates([documents.sketches[digest] for digest in digests], least)
    named = {digest: digests[group] for digest, group in zip(digests, groups, strict=True)}
    names = sorted(set(named.values()))
    reserved = set[str]()
    if share is not None:
        if len(names) == 1:
            raise OneDocumentError
        below = sum(int(name[:13], 16) < share * 16**13 for name in names)
        reserved = {*names[: min(max(1, below), len(names) - 1)]}
    rows = [(sample_id, named[digest], named[digest] in reserved) for sample_id, digest in documents.of.items()]
    return pl.DataFrame(rows, schema=tables.schema(tables.DOCUMENT_SPLIT), orient="row").sort("sample_id")


def group_sizes(found: pl.DataFrame) -> pl.Series:
    """Return the number of samples of each document with several samples, i64, the largest first.

    found: tables.DOCUMENT_SPLIT.
    """
    sizes = found.group_by("document").agg(samples=pl.len().cast(pl.Int64))["samples"]
    return sizes.filter(sizes > 1).sort(descending=True)
