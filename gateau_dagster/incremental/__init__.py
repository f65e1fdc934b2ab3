"""Only what changed recomputes: fingerprints of outputs, and the comparison of recorded with wanted ones."""
