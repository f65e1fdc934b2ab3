"""Make a long model from another one by continued training on long and short texts."""
