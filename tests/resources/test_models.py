"""One model at a time stays loaded: the same one again costs nothing, new weights at the same path are loaded."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from gateau_dagster.config.load import load_config
from resources.models import ModelsResource
from tests.project import make_project


@pytest.fixture
def models() -> Iterator[ModelsResource]:
    resource = ModelsResource()
    resource.release()
    yield resource
    resource.release()


def test_a_load_serves_many_shards(tmp_path: Path, models: ModelsResource) -> None:
    config = load_config(make_project(tmp_path, samples=2, shards=1))
    first = models.load(config, config.models["long"], version="1")
    assert ModelsResource().load(config, config.models["long"], version="1") is first, "of another step too"
    assert models.load(config, config.models["long"], version="2") is not first, "new weights"
    short = models.load(config, config.models["short"], version="1")
    assert short.name == "short"
    assert models.load(config, config.models["long"], version="1") is not first, "one at a time"


def test_another_rope_base_is_another_model(tmp_path: Path, models: ModelsResource) -> None:
    config = load_config(make_project(tmp_path, samples=2, shards=1))
    section = config.models["long"]
    first = models.load(config, section, version="1")
    other = models.load(config, section.model_copy(update={"rope_theta": 5e5}), version="1")
    assert other is not first
    assert other.model.config.rope_parameters["rope_theta"] == 5e5


def test_release(tmp_path: Path, models: ModelsResource) -> None:
    config = load_config(make_project(tmp_path, samples=2, shards=1))
    first = models.load(config, config.models["long"], version="1")
    models.release()
    assert models.load(config, config.models["long"], version="1") is not first
