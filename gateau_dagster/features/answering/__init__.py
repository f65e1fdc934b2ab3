"""Answers to the questions of benchmarks, and their judgments: the servers that are asked for them."""
