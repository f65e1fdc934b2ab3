"""Metrics that compare an answer with a right one by its words alone; values of 0 to 1."""
