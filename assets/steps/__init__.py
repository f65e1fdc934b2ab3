"""Surround the work of an asset: its definition, its step, progress, failures, metadata."""
