"""Draw the plots of the report and of Dagster's metadata."""
