"""What fine-tuning changed: the checkpoint against its base model."""
