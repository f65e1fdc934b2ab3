"""Explain one sample: its places in the rankings, and which segments of its context its response comes from."""
