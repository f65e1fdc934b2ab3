"""Declare the pipeline's assets, and find which of them are out of date."""
