"""From perplexities and segment figures to scores, ranks and the chosen samples. No torch."""
