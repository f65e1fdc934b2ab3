"""Define the Dagster code location of one configuration."""

import os

from gateau_dagster.component import build_definitions
from gateau_dagster.errors import DEMO, ENVIRONMENT_VARIABLE
from gateau_dagster.pipeline.project import configuration_name

__all__ = ["build_definitions", "defs"]

# Without a configuration, the code location is that of the embedded demo.
_config_file = configuration_name(configuration_name() or DEMO)
# The messages of this process and its children name the configuration in their commands.
os.environ[ENVIRONMENT_VARIABLE] = _config_file
defs = build_definitions(_config_file)
