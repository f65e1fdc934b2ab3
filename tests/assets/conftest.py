"""Pipelines that are expensive to run for the first time are run once a module."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.assets.harness import Pipeline, pipeline_on
from tests.project import make_project


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pipeline]:
    """24 samples in 4 shards, up to date at the start of the module."""
    with pipeline_on(make_project(tmp_path_factory.mktemp("small"))) as pipeline:
        pipeline.refresh()
        yield pipeline


@pytest.fixture
def fresh(tmp_path: Path) -> Iterator[Pipeline]:
    """12 samples in 3 shards, nothing run yet."""
    with pipeline_on(make_project(tmp_path, samples=12, shards=3)) as pipeline:
        yield pipeline
