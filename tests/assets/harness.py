"""The pipeline of a small project, run in this process on an instance of its own."""

import atexit
import importlib
import shutil
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from io import BytesIO
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from dagster import DagsterInstance, DagsterRun
from dagster._core.definitions.reconstruct import ReconstructableJob
from dagster._core.storage.tags import ASSET_PARTITION_RANGE_END_TAG, ASSET_PARTITION_RANGE_START_TAG
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

from gateau_dagster.assets.runs.instance import open_instance, open_log
from gateau_dagster.assets.runs.refresh import Refreshed, refresh
from gateau_dagster.assets.steps.definition import asset_definitions
from gateau_dagster.assets.steps.event_log import recorded_tags
from gateau_dagster.assets.steps.metadata import DATA_VERSION_TAG
from gateau_dagster.config import Config
from gateau_dagster.features.evaluation.assets.judge import JudgeResource
from gateau_dagster.pipeline.observed import state_of
from gateau_dagster.pipeline.project import load_project
from gateau_dagster.pipeline.state import State
from gateau_dagster.resources.configuration import ConfigurationResource
from gateau_dagster.resources.history import home_of
from gateau_dagster.resources.models import ModelsResource
from gateau_dagster.small_charts import INLINE_LIMIT
from gateau_dagster.storage import Stamp
from tests.kit.project import change_config

Made = dict[tuple[str, str | None], dg.AssetMaterialization]
"""Materialisations by asset and partition."""


@dg.job
def empty_job() -> None:
    """Run nothing."""


def versions_on_record(instance: DagsterInstance, state: State, asset: str) -> dict[str | None, str]:
    """The data version of the latest record of each partition, or of an asset without any."""
    return {part: tags[DATA_VERSION_TAG] for part, tags in recorded_tags(instance, state, asset).items()}


class Pipeline:
    """A project and its Dagster instance."""

    def __init__(self, file: Path, instance: DagsterInstance) -> None:
        self.file = file
        self.instance = instance

    @property
    def config(self) -> Config:
        """The file as it is now."""
        return load_project(self.file)

    @property
    def resource(self) -> ConfigurationResource:
        """A new one, as every run gets."""
        return ConfigurationResource(config_file=str(self.file))

    def state(self) -> State:
        """The store and the input as they are now."""
        return state_of(config=self.config)

    def refresh(self, until: str | None = None) -> Refreshed:
        """What `gateau run` does."""
        forget_definitions()
        with blank_plots():
            return refresh(self.instance, self.resource, until=until)

    def made(self, until: str | None = None, **sections: Any) -> Made:
        """Change sections of the configuration, refresh, and return what the runs recorded."""
        change_config(self.file, **sections)
        runs = self.refresh(until).run_ids
        return {key_of(event): event for run in runs for event in self.materialised(run)}

    def make(self, asset: str, partition: str | None = None, *, fails: bool = False) -> dg.ExecuteInProcessResult:
        """Make one asset alone, without those before it; `fails`: its step may fail."""
        given = {"configuration": self.resource, "judge": JudgeResource(), "models": ModelsResource()}
        return dg.materialize(
            [self.asset(asset)],
            instance=self.instance,
            resources=given,
            partition_key=partition,
            raise_on_error=not fails,
        )

    def execute(self, assets: Iterable[str], *, fails: bool = False, **options: Any) -> dg.ExecuteInProcessResult:
        """Run as the UI does: chosen assets, a partition or a range."""
        whole = self.definitions().resolve_job_def("everything")
        job = whole.get_subset(asset_selection={asset_key(each) for each in assets})
        return job.execute_in_process(instance=self.instance, raise_on_error=not fails, **options)

    def latest(self, asset: str) -> dg.AssetMaterialization:
        """Return the last record of an asset."""
        event = self.instance.get_latest_materialization_event(asset_key(asset))
        assert event is not None and event.asset_materialization is not None
        return event.asset_materialization

    def stamp(self, asset: str, partition: str | None = None) -> Stamp:
        """Return the stamp of an output that is in the store."""
        found = self.state().stamp(asset, partition)
        assert found is not None
        return found

    def parents(self) -> dict[str, set[str]]:
        """Return what each asset of Dagster's graph is made from."""
        graph = self.definitions().resolve_asset_graph()
        keys = graph.get_all_asset_keys()
        return {name_of(key): {name_of(each) for each in graph.get(key).parent_keys} for key in keys}

    def checks(self) -> dict[str, set[str]]:
        """Return the names of each asset's checks."""
        found: dict[str, set[str]] = {}
        for check in self.definitions().resolve_asset_graph().asset_check_keys:
            found.setdefault(name_of(check.asset_key), set()).add(check.name)
        return found

    def definitions(self) -> dg.Definitions:
        """The code location on this project."""
        return importlib.import_module("gateau_dagster.definitions").build_definitions(str(self.file))

    def asset(self, key: str) -> dg.AssetsDefinition:
        """One asset alone, to be made without those before it."""
        return next(each for each in asset_definitions(self.config) if asset_key(key) in each.keys)

    def runs(self) -> list[DagsterRun]:
        """All runs, newest first."""
        return list(self.instance.get_runs())

    def materialised(self, run_id: str) -> list[dg.AssetMaterialization]:
        """Every materialisation that a run recorded, in order."""
        records = self.instance.get_records_for_run(run_id, of_type=dg.DagsterEventType.ASSET_MATERIALIZATION).records
        events = [record.event_log_entry.get_dagster_event() for record in records]
        return [event.step_materialization_data.materialization for event in events]


def in_range(first: str, last: str) -> dict[str, str]:
    """Return the tags of a run that makes these partitions and those between them."""
    return {ASSET_PARTITION_RANGE_START_TAG: first, ASSET_PARTITION_RANGE_END_TAG: last}


def in_place(value: Any) -> bool:
    """Whether it is an image that the asset's page shows without a click."""
    text = str(value.value) if isinstance(value, dg.MarkdownMetadataValue) else ""
    return text.startswith("![") and len(text) < INLINE_LIMIT


@contextmanager
def blank_plots() -> Iterator[None]:
    """No plots in the report, and empty ones elsewhere: drawing is most of the time of a small run, and is tested in
    tests/features/report.
    """
    blank = _blank()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("gateau_dagster.features.report.drawings.drawings", lambda *_: {})
        patch.setattr(FigureCanvasSVG, "print_svg", lambda _, target, **__: target.write(blank))
        patch.setattr(Figure, "findobj", lambda *_: [])
        yield


@cache
def _blank() -> bytes:
    drawn = BytesIO()
    FigureCanvasSVG(Figure(figsize=(1, 1))).print_svg(drawn)
    return drawn.getvalue()


def forget_definitions() -> None:
    """Definitions are loaded once a process; here one process has many projects."""
    sys.modules.pop("gateau_dagster.definitions", None)
    ReconstructableJob.get_definition.cache_clear()
    ReconstructableJob.get_repository_definition.cache_clear()


@contextmanager
def pipeline_on(file: Path) -> Iterator[Pipeline]:
    """The pipeline of a configuration file, with Dagster's home beside it, as for `gateau run`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DAGSTER_HOME", "")
        patch.setenv("GATEAU_CONFIG", str(file))
        forget_definitions()
        config = load_project(file)
        if config.execution.postgres is None and not home_of(config).exists():
            shutil.copytree(_empty_home(), home_of(config))
        with open_instance(config) as instance, open_log(instance):
            yield Pipeline(file, instance)
        forget_definitions()


@cache
def _empty_home() -> Path:
    """A home of Dagster with its tables and nothing in them, which take a quarter of a second to make."""
    folder = Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, folder)
    pair = {"short": {"path": "short"}, "long": {"path": "long"}}
    config = Config.model_validate({"folder": folder, "long_sft": {"path": "long.jsonl"}, "models": pair})
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DAGSTER_HOME", "")  # which opening sets
        home = home_of(config)
        open_instance(config).dispose()
    return home


def asset_key(asset: str) -> dg.AssetKey:
    """Dagster's key of an asset, in a code location with one pipeline."""
    return dg.AssetKey(asset.split("/"))


def name_of(key: dg.AssetKey) -> str:
    """Return the asset of Dagster's key."""
    return key.to_user_string()


def failure_of(result: dg.ExecuteInProcessResult) -> str | None:
    """Return what the step that failed says; None for a defect."""
    (event,) = [event for event in result.all_events if event.is_step_failure]
    found = event.step_failure_data.user_failure_data
    return None if found is None else found.description


def key_of(event: dg.AssetMaterialization) -> tuple[str, str | None]:
    """Asset and partition."""
    return event.asset_key.to_user_string(), event.partition


def version_of(event: dg.AssetMaterialization) -> str:
    """Data version."""
    assert event.tags is not None
    return event.tags[DATA_VERSION_TAG]


def value_of(event: dg.AssetMaterialization, name: str) -> Any:
    """A metadata value, None where there is none."""
    found = event.metadata.get(name)
    return None if found is None else found.value
