"""Synthetic long samples."""
