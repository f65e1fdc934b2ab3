"""Perplexity (Eq. 1) and contextual awareness measurement (Eqs. 3-5) of sample sets, by one model at a time."""
