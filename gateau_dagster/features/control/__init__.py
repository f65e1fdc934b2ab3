"""The control of a ranking: how well its score tells samples apart of which the truth is known without labels."""
