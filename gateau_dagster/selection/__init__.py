"""Turn perplexities and segment values into scores, ranks and the chosen samples, without torch."""
