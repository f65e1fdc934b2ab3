"""Benchmarks, answers, judgments and experiments: declared, made and checked."""

ANSWERS, JUDGMENTS, SCORES, PAIRS = "answers", "judgments", "scores", "pairwise"
"""The first parts of keys; a benchmark's name follows."""
EXPERIMENT, UNTOUCHED_EXPERIMENT, CHARACTERISTICS = "experiment", "untouched_experiment", "characteristics"
GATE, READABLE_REPLIES = "gate", "readable_replies"
"""Names of checks."""
