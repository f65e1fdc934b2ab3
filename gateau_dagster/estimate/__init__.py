"""Estimate what a plan will take: tokens, FLOPs, time."""
