"""How runs are kept apart: one file each."""
