"""Compare trained models, and learn from them what the next choice of samples is going to change."""
