"""Thin Dagster assets: load, call one method, return the result with metadata."""

import warnings

import dagster as dg

from gateau_dagster.errors import redact_output

# Backfill policies, partition mappings and Pipes readers are "beta" or "preview" in Dagster 1.13, which is pinned; a
# user who runs `gateau run` can do nothing about it.
warnings.filterwarnings("ignore", category=dg.BetaWarning)
warnings.filterwarnings("ignore", category=dg.PreviewWarning)

redact_output()  # Dagster stores what is logged
