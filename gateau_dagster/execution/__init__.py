"""Compute tables shard by shard: keep valid rows, save progress, measure the effort."""
