"""Thin Dagster assets: load, call one method, return the result with metadata."""
