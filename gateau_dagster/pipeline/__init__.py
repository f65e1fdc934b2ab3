"""The pipeline: its assets, declared once, and what of them is out of date."""
