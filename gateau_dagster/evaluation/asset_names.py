"""Name the assets of benchmarks, judgments and experiments."""

ANSWERS, JUDGMENTS, SCORES, PAIRS = "answers", "judgments", "scores", "pairwise"
"""The first parts of keys; a benchmark's name follows."""
EXPERIMENT, UNTOUCHED_EXPERIMENT, CHARACTERISTICS = "experiment", "untouched_experiment", "characteristics"
