"""GATEAU: choose the long instruction samples that need their long context."""

__version__ = "0.1.0"
