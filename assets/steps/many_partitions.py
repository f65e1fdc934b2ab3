"""Limit what Dagster records per partition of a table with very many: figures only, no rows, charts or checks.

Dagster stores a partition's record twice (in SQLite, for the run and for the asset). Each record has some 150 bytes
around each figure, and 100 around each previewed column. The checks name the failing partitions, and the report has the
asset's totals.
"""

from collections.abc import Mapping
from typing import Any

import dagster as dg

from gateau_dagster.pipeline.pipeline import Pipeline

FEW = 256
"""The largest number of partitions of which each is recorded in full."""

# The tag of the data version and `dagster/uri` contain these already.
_SAID_TWICE = {"fingerprint", "path"}
_PICTURES = (dg.TableMetadataValue, dg.MarkdownMetadataValue)
_ALWAYS = {"rejected_samples"}


def has_many(pipeline: Pipeline, asset: str) -> bool:
    """Return whether an asset has more partitions than are recorded in full."""
    return len(pipeline.partitions(asset)) > FEW


def figures_only(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return a partition's metadata without rows and charts; its rejects and their reasons stay."""
    return {
        name: value
        for name, value in metadata.items()
        if name in _ALWAYS or not (name in _SAID_TWICE or isinstance(value, _PICTURES))
    }
