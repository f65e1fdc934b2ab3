"""Compose the pipeline of a configuration for Dagster: as a code location, or as a component of one."""

import json
import re
from pathlib import Path

import dagster as dg
from dagster.components import Scaffolder, ScaffoldRequest, scaffold_component, scaffold_with
from pydantic import BaseModel, Field, field_validator

from gateau_dagster.assets.runs.automation import (
    dead_runs_sensor,
    failure_sensors,
    inputs_sensor,
    nightly,
    out_of_date_sensor,
)
from gateau_dagster.assets.runs.checks import asset_checks
from gateau_dagster.assets.runs.jobs import asset_jobs, executor_of, refresh_job
from gateau_dagster.assets.steps.definition import asset_definitions, input_definitions
from gateau_dagster.assets.steps.partitions import own_name
from gateau_dagster.config import Prefixes
from gateau_dagster.config.values import possible_path
from gateau_dagster.errors import DEMO, DEMO_FOLDER, GateauError, demo_name
from gateau_dagster.pipeline.project import configuration_name
from gateau_dagster.readable import plural
from gateau_dagster.registry import distinct, feature_parts
from gateau_dagster.resources.configuration import ConfigurationResource
from gateau_dagster.resources.models import ModelsResource
from gateau_dagster.resources.notification import NotificationResource
from gateau_dagster.resources.project import checked_project
from gateau_dagster.resources.training import TrainingResource

_KEY_PREFIX = re.compile(r"([A-Za-z][\w.-]*(/[\w.-]*\w[\w.-]*)*)?", re.ASCII)  # Dagster's resources begin with a letter
_GROUP_PREFIX = re.compile(r"(\w+(/\w+)*/?)?", re.ASCII)  # as Dagster takes a group's name
_COMPONENT_PY = """\
import dagster as dg
from gateau_dagster import GateauPipeline


@dg.component_instance
def load(context: dg.ComponentLoadContext) -> GateauPipeline:
    return GateauPipeline(config={config}, key_prefix={key_prefix})
"""


def build_definitions(config_file: str = DEMO, prefixes: Prefixes | None = None) -> dg.Definitions:
    """Return everything that Dagster needs to know of a configuration.

    Args:
        config_file: see `configuration_name`.
        prefixes: of a component. Its code location may hold more, so the configured executor is that of its jobs only.

    Raises:
        GateauError: the configuration is missing or wrong.
    """
    config_file = configuration_name(config_file)
    config = checked_project(config_file).prefixed(prefixes or Prefixes())
    resources = {
        "configuration": ConfigurationResource(config_file=config_file, key_prefix=[*config.prefixes.keys]),
        "models": ModelsResource(),
        "notification": NotificationResource(),
        "training": TrainingResource(),
    }
    of_features = (each for found in feature_parts("assets", "RESOURCES", dict) for each in found.items())
    resources = distinct([*resources.items(), *of_features], "resource")
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
        executor=executor_of(config) if prefixes is None else None,
        resources={own_name(config, name): resource for name, resource in resources.items()},
    )


class ScaffoldOptions(BaseModel):
    """Options of `dg scaffold defs gateau_dagster.GateauPipeline`."""

    config: str = Field(default=DEMO, description="Path of gateau.yaml, from the component's folder; or demo.")


class PipelineScaffolder(Scaffolder[ScaffoldOptions]):
    """Writes a component whose assets have the name of its folder as key prefix, so that several load together."""

    @classmethod
    def get_scaffold_params(cls) -> type[ScaffoldOptions]:
        """Return the options."""
        return ScaffoldOptions

    def scaffold(self, request: ScaffoldRequest[ScaffoldOptions]) -> None:
        """Write defs.yaml, or component.py."""
        name = re.sub(r"\W+", "_", request.target_path.name, flags=re.ASCII)
        attributes = {
            "config": request.params.config,
            "key_prefix": name if _KEY_PREFIX.fullmatch(name) else f"gateau_{name}",
        }
        if request.scaffold_format == "yaml":
            scaffold_component(request, attributes)
        else:  # Dagster's own file returns no component
            text = _COMPONENT_PY.format(**{name: json.dumps(value) for name, value in attributes.items()})
            (request.target_path / "component.py").write_text(text, encoding="utf-8")


@scaffold_with(PipelineScaffolder)
class GateauPipeline(dg.Component, dg.Model, dg.Resolvable):
    """The GATEAU pipeline of a gateau.yaml: assets, checks, jobs, schedule and sensors.

    Several of them load in one code location if each has its own `key_prefix`.
    """

    config: str = Field(
        default=DEMO,
        description="Path of gateau.yaml, from the component's folder. demo: the embedded demo, in the project's "
        f"folder {DEMO_FOLDER}.",
    )
    key_prefix: str | list[str] = Field(
        default=[],
        description="The beginning of the asset keys, as a list or as `a/b`, and of the names of jobs, schedules, "
        "sensors, resources and steps.",
    )
    group_prefix: str | None = Field(
        default=None, description="The beginning of the groups' names. Default: the key prefix."
    )

    @field_validator("key_prefix")
    @classmethod
    def _parts(cls, value: str | list[str]) -> list[str]:
        text = value if isinstance(value, str) else "/".join(value)
        if not _KEY_PREFIX.fullmatch(text):
            raise ValueError("use letters, digits, _, - and . in each part, and begin with a letter")
        return text.split("/") if text else []

    @field_validator("group_prefix")
    @classmethod
    def _of_a_group(cls, value: str | None) -> str | None:
        if value is not None and not _GROUP_PREFIX.fullmatch(value):
            raise ValueError("use letters, digits and _ in each part, and / between parts")
        return value

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:
        """Return the definitions, read from the configuration.

        Raises:
            GateauError: the configuration is missing or wrong.
        """
        keys = tuple(self.key_prefix)
        groups = re.sub(r"\W", "_", "_".join(keys)) if self.group_prefix is None else self.group_prefix
        try:
            self._check_prefix(context)
            return build_definitions(self._configuration(context), Prefixes(keys=keys, groups=groups))
        except GateauError as error:  # without the trace of our code
            raise error.reworded(f"{context.path}: {error}") from None

    def _configuration(self, context: dg.ComponentLoadContext) -> str:
        if self.config == DEMO:
            return demo_name(str(context.project_root.absolute() / DEMO_FOLDER))
        try:
            given = Path(possible_path(self.config)).expanduser()
        except GateauError as error:
            raise error.reworded(f"config: {error}") from error
        folder = context.path if context.path.is_dir() else context.path.parent
        file = folder / given
        if not file.exists() or file.is_dir():
            found = "is a folder" if file.is_dir() else "does not exist"
            raise GateauError(
                "config.unreadable",
                f"config: {self.config}: {file.resolve()} {found}. Name an existing gateau.yaml, from the component's "
                f"folder, or {DEMO} for the embedded demo",
            )
        return str(file)

    def _check_prefix(self, context: dg.ComponentLoadContext) -> None:
        """Raise GateauError if another component has the same names; Dagster's own message would name a resource."""
        if not context.component_tree.is_fully_loaded():  # this component alone is built
            return
        beginning = self._beginning()
        components = context.component_tree.get_all_components(GateauPipeline)
        same = [component for component in components if component._beginning() == beginning]
        if len(same) > 1:
            raise GateauError(
                "component.key_prefix",
                f"key_prefix: {plural(len(same), 'component')} of this project give their assets, jobs and resources "
                f"the same names: key_prefix is {'/'.join(self.key_prefix) or 'empty'}, or differs only in signs such "
                "as - and _. Give each component another key_prefix",
            )

    def _beginning(self) -> str:
        return dg.AssetKey([*self.key_prefix, ""]).to_python_identifier()
