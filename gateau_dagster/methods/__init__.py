"""Selection methods: one file each, found by the registry. None imports torch until it scores."""
