"""Comparison of selection methods: whether they agree, what each prefers, and what their parameters change."""
