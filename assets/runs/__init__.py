"""Surround the assets: refreshing them, jobs, schedule, sensors, checks, Dagster's home and records."""
