"""Evaluation of what fine-tuning changed: the checkpoint compared with its base model."""
