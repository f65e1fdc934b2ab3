"""Keep runs apart, so that a store has one owner."""
