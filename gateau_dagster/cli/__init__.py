"""The `gateau` command."""

from gateau_dagster.cli.commands import main

__all__ = ["main"]
