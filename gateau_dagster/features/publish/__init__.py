"""Publish a selection as a data set on the Hugging Face hub, with a card, after checks for secrets."""
