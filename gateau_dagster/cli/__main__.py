"""`python -m gateau_dagster.cli`."""

from gateau_dagster.cli.commands import main

main()
