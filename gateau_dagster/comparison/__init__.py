"""Selection methods side by side: whether they agree, what each prefers, and what their parameters change."""
