"""Score sample sets by one model at a time: perplexity (Eq. 1) and contextual awareness measurement (Eqs. 3-5)."""
