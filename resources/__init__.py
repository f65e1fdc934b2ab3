"""Connect to what is outside the process: storage, language models and devices, the training launcher."""
