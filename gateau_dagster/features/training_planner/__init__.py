"""Plan the memory of training runs, and refuse runs that do not fit into their GPUs."""
