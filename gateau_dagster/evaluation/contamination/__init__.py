"""Which questions of a benchmark stand in the data that models are trained on."""
