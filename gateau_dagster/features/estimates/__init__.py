"""Estimate the time and the amounts of a plan, and the differences that its experiment can show."""
