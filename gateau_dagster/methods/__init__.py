"""Selection methods: one file each, found by the registry. They import torch only when they score."""
