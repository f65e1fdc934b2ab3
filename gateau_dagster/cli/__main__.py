"""`python -m gateau_dagster.cli`."""

from gateau_dagster.cli.main import main

main()
