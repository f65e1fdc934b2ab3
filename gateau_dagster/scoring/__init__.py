"""Perplexity (Eq. 1) and contextual awareness measurement (Eqs. 3-5) of one sample at a time."""
