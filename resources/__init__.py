"""What is outside the process: storage, language models and devices, the training launcher."""
