"""Statistics over the values of single questions: intervals, differences between models, and the best model."""
