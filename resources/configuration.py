"""Provide the configuration file as a Dagster resource: what is stored, what is wanted, what is out of date."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import dagster as dg
from pydantic import Field, PrivateAttr

from gateau_dagster.config import Config, Prefixes
from gateau_dagster.errors import DEMO, ENVIRONMENT_VARIABLE
from gateau_dagster.pipeline.observed import asks_hub, state_of
from gateau_dagster.pipeline.state import State
from gateau_dagster.progress import Progress, silent
from gateau_dagster.resources.project import checked_project


class ConfigurationResource(dg.ConfigurableResource):
    """Reads the configuration again for every run, so that an edit counts without restarting Dagster."""

    config_file: str = Field(default=DEMO, description="Path of the YAML file; demo: the embedded demo.")
    key_prefix: list[str] = Field(default=[], description="The beginning of the asset keys, from the component.")
    _config: Config | None = PrivateAttr(default=None)

    @property
    def config(self) -> Config:
        """Return the validated configuration.

        Raises:
            GateauError: the file is missing or wrong.
        """
        if self._config is None:
            prefixes = Prefixes(keys=tuple(self.key_prefix))
            self._config = checked_project(self.config_file).prefixed(prefixes)
        return self._config

    @contextmanager
    def in_environment(self) -> Iterator[None]:
        """Set the configuration file in the environment: messages name it, and `definitions.py` reads it."""
        before = os.environ.get(ENVIRONMENT_VARIABLE)
        os.environ[ENVIRONMENT_VARIABLE] = self.config_file
        try:
            yield
        finally:
            os.environ.pop(ENVIRONMENT_VARIABLE)
            if before is not None:
                os.environ[ENVIRONMENT_VARIABLE] = before

    def state(self, progress: Progress = silent, assets: Sequence[str] = ()) -> State:
        """Return the store and the input as they are now; data sets on the hub count if one of `assets` is there."""
        publishes = any(asks_hub(self.config, asset) for asset in assets)
        return state_of(config=self.config, progress=progress, asks_hub=publishes)
