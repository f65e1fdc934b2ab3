"""Input: where it is, how it is read, what becomes a sample and what is rejected."""
