"""Supervised fine-tuning on the selected samples."""
