"""What surrounds assets: bringing them up to date, jobs, schedule, sensors, checks, Dagster's home and records."""
