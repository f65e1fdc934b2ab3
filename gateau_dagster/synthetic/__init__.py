"""The embedded demo: a small language with known dependencies, and a homologous pair that has learned it."""
