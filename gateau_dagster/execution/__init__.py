"""Computing a table shard by shard: kept rows, saved progress, what it took."""
