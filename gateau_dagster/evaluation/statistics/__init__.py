"""What the values of single questions say of models: intervals, differences, and which of them is the best."""
