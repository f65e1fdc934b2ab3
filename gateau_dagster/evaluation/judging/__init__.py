"""How answers are put before a judge, what it said, what that costs."""
