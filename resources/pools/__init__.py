"""Worker pools: one file each, found by the registry; how a step scores in several workers."""
