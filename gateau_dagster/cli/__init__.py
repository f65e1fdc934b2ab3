"""The `gateau` command."""

from gateau_dagster.cli.main import main

__all__ = ["main"]
