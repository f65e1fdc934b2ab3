"""`python -m gateau_dagster.cli`."""

from gateau_dagster.cli import main

main()
