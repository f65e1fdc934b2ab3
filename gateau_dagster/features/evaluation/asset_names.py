"""Name the assets of benchmarks, judgments and experiments, and the checks of these assets."""

ANSWERS, JUDGMENTS, SCORES, PAIRS = "answers", "judgments", "scores", "pairwise"
"""The first parts of keys; a benchmark's name follows."""
EXPERIMENT, UNTOUCHED_EXPERIMENT, CHARACTERISTICS = "experiment", "untouched_experiment", "characteristics"
GATE, READABLE_REPLIES = "gate", "readable_replies"
"""Names of checks."""
