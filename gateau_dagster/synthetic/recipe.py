"""The recipe's version, which names the demo's models in fingerprints. Without torch: the planner reads it."""

# Raise it when the same seed gives other weights.
RECIPE_VERSION = "3"
