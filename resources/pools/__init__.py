"""Score a step in several workers. One file per worker pool; the registry finds them."""
