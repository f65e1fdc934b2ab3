"""Read the input: locate files, parse records, and accept or reject samples."""
