"""The embedded demo: a synthetic language, a homologous pair that learns it, and samples with known dependencies."""
