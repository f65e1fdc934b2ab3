"""Search for questions of a benchmark in the data that models are trained on."""
