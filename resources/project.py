"""Load the configuration with the checks above Dagster: the schedule passes Dagster's own check."""

from pathlib import Path

from gateau_dagster.config import Config, ExecutionConfig
from gateau_dagster.errors import GateauError
from gateau_dagster.pipeline.project import load_project
from gateau_dagster.resources.pools.pool import chosen_pool

_LONG_AGO = "2000-01-01"


def checked_project(path: str | Path | None = None) -> Config:
    """Load a configuration like `load_project`; also check the schedule, by Dagster, and the worker pool.

    Raises:
        GateauError: the file cannot be read, or is wrong; the message names each place in it.
    """
    return load_project(path, [check_schedule, check_pool])


def check_schedule(config: Config) -> None:
    """Check that Dagster can run the nightly refresh by the cron line of a configuration.

    Raises:
        GateauError: the line is invalid, or its time never comes.
    """
    line = config.execution.schedule
    if line == ExecutionConfig().schedule:
        return  # importing Dagster costs `gateau plan` a second
    import dagster as dg

    # A ScheduleDefinition checks a line by the same function, but not its times: it accepts 31 April, and the daemon
    # fails on it.
    try:
        windows = dg.TimeWindowPartitionsDefinition(cron_schedule=line, start=_LONG_AGO, fmt="%Y-%m-%d")
    except dg.DagsterInvalidDefinitionError as error:
        raise GateauError(
            "execution.schedule",
            f"execution.schedule: {line!r} is not a cron line: give minute, hour, day, month and weekday, such as "
            "'0 3 * * *' or '@daily'",
        ) from error
    try:
        windows.get_first_partition_key()
    except ValueError as error:
        raise GateauError(
            "execution.schedule", f"execution.schedule: {line!r} names a date that does not exist: correct day or month"
        ) from error


def check_pool(config: Config) -> None:
    """Raise GateauError for a worker pool that does not exist."""
    chosen_pool(config)
