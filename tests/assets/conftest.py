"""A pipeline that is expensive to run for the first time is run once, and copied for each module."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateau_dagster.config import Config
from gateau_dagster.pipeline.project import load_project
from tests.assets.harness import Pipeline, pipeline_on
from tests.conftest import Shared
from tests.kit.project import make_project


@pytest.fixture
def config(tmp_path: Path) -> Config:
    """Return the configuration of a project of two samples in which nothing has run."""
    return load_project(make_project(tmp_path, samples=2, shards=1))


@pytest.fixture(scope="session")
def made_once(shared: Shared) -> Path:
    """The folder of a project that was run: 24 samples in 4 shards; to be copied, not to be changed."""

    def make(folder: Path) -> None:
        with pipeline_on(make_project(folder)) as pipeline:
            pipeline.refresh()

    return shared("made_once", make)


@pytest.fixture(scope="module")
def small(made_once: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pipeline]:
    """A copy of it with its Dagster home, for the module to change: up to date at the start.

    Its folder's name is a pattern to some, who would find nothing there.
    """
    folder = tmp_path_factory.mktemp("small") / "project [1]"
    shutil.copytree(made_once, folder)
    with pipeline_on(folder / "gateau.yaml") as pipeline:
        yield pipeline


@pytest.fixture
def fresh(tmp_path: Path) -> Iterator[Pipeline]:
    """12 samples in 3 shards, nothing run yet."""
    with pipeline_on(make_project(tmp_path, samples=12, shards=3)) as pipeline:
        yield pipeline
