"""Build the report, one self-contained HTML page about a run, and the viewer of all samples."""
