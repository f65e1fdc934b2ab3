"""Define thin Dagster assets: load, call one method, return the result with metadata."""

import warnings

import dagster as dg

from gateau_dagster.errors import redact_output

# Backfill policies, partition mappings and Pipes readers are "beta" or "preview" in the pinned Dagster 1.13. A user who
# runs `gateau run` cannot act on these warnings.
warnings.filterwarnings("ignore", category=dg.BetaWarning)
warnings.filterwarnings("ignore", category=dg.PreviewWarning)

redact_output()  # Dagster stores what is logged
