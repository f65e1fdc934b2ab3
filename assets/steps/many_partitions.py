"""What Dagster keeps of each partition of a table that has very many: its figures, and no rows, charts or checks.

Dagster writes down twice what is on record of a partition (in SQLite, once for the run and once for the asset), with
some 150 bytes around each figure and 100 around each column of a previewed table. Of thousands, nobody turns the pages;
the checks name the partitions that fail, and the asset's figures are those of the report.
"""

from collections.abc import Mapping
from typing import Any

import dagster as dg

from gateau_dagster.pipeline.pipeline import Pipeline

FEW = 256
"""Partitions of which each is recorded in full."""

# Said by the tag of the data version, and by `dagster/uri`.
_SAID_TWICE = {"fingerprint", "path"}
_PICTURES = (dg.TableMetadataValue, dg.MarkdownMetadataValue)
_ALWAYS = {"rejected_samples"}


def has_many(pipeline: Pipeline, asset: str) -> bool:
    """Whether an asset has more partitions than are recorded in full."""
    return len(pipeline.partitions(asset)) > FEW


def figures_only(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Of a partition's metadata, without its rows and charts; what it rejected, and why, stays."""
    return {
        name: value
        for name, value in metadata.items()
        if name in _ALWAYS or not (name in _SAID_TWICE or isinstance(value, _PICTURES))
    }
