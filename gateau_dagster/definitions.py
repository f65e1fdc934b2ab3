"""Define the Dagster code location. Only this file composes assets, checks, jobs, automation and resources."""

import os

import dagster as dg

from gateau_dagster.assets.runs.automation import dead_runs_sensor, nightly, out_of_date_sensor
from gateau_dagster.assets.runs.checks import asset_checks
from gateau_dagster.assets.runs.failures_sensor import failure_sensors
from gateau_dagster.assets.runs.input_sensor import inputs_sensor
from gateau_dagster.assets.runs.jobs import asset_jobs, refresh_job
from gateau_dagster.assets.steps.definition import asset_definitions, input_definitions
from gateau_dagster.errors import DEMO, ENVIRONMENT_VARIABLE
from gateau_dagster.pipeline.project import configuration_name
from gateau_dagster.resources.configuration import ConfigurationResource
from gateau_dagster.resources.judge import JudgeResource
from gateau_dagster.resources.models import ModelsResource
from gateau_dagster.resources.notification import NotificationResource
from gateau_dagster.resources.project import checked_project
from gateau_dagster.resources.training import TrainingResource

__all__ = ["build_definitions", "defs"]


def build_definitions(config_file: str = DEMO) -> dg.Definitions:
    """Return everything that Dagster needs to know of a configuration.

    Args:
        config_file: see `configuration_name`.

    Raises:
        GateauError: the configuration is missing or wrong.
    """
    config_file = configuration_name(config_file)
    config = checked_project(config_file)
    execution = config.execution
    executor = (
        dg.in_process_executor
        if execution.executor == "in_process"
        else dg.multiprocess_executor.configured({"max_concurrent": execution.max_concurrent})
    )
    jobs = [*asset_jobs(config), refresh_job(config)]
    return dg.Definitions(
        assets=[*input_definitions(config), *asset_definitions(config)],
        asset_checks=asset_checks(config),
        jobs=jobs,
        schedules=[nightly(config)],
        sensors=[
            out_of_date_sensor(config, jobs),
            dead_runs_sensor(config),
            inputs_sensor(config),
            *failure_sensors(config),
        ],
        executor=executor,
        resources={
            "configuration": ConfigurationResource(config_file=config_file),
            "judge": JudgeResource(),
            "models": ModelsResource(),
            "notification": NotificationResource(),
            "training": TrainingResource(),
        },
    )


# Without a configuration, the code location is that of the embedded demo.
_config_file = configuration_name(configuration_name() or DEMO)
# The messages of this process and its children name the configuration in their commands.
os.environ[ENVIRONMENT_VARIABLE] = _config_file
defs = build_definitions(_config_file)
