"""Features: each folder adds a part of the product that the kernel does not know. CONTRIBUTING.md says how."""

# The configuration is made of the kernel's sections and of those of features, which need the kernel's first.
import gateau_dagster.config  # noqa: F401
