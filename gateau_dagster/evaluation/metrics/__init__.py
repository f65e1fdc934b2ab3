"""What an answer is worth against a right one, by its words alone; values of 0 to 1."""
