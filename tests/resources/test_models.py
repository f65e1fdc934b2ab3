"""One model at a time stays loaded: the same one again costs nothing, new weights at the same path are loaded."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from gateau_dagster.pipeline.project import load_project
from gateau_dagster.resources.models import ModelsResource
from tests.error_codes import refused
from tests.project import make_project


@pytest.fixture
def models() -> Iterator[ModelsResource]:
    resource = ModelsResource()
    resource.release()
    yield resource
    resource.release()


def test_a_load_serves_many_shards(tmp_path: Path, models: ModelsResource) -> None:
    config = load_project(make_project(tmp_path, samples=2, shards=1))
    first = models.load(config, config.models["long"], version="1")
    assert ModelsResource().load(config, config.models["long"], version="1") is first, "of another step too"
    assert models.load(config, config.models["long"], version="2") is not first, "new weights"
    short = models.load(config, config.models["short"], version="1")
    assert short.name == "short"
    assert models.load(config, config.models["long"], version="1") is not first, "one at a time"


def test_another_rope_base_is_another_model(tmp_path: Path, models: ModelsResource) -> None:
    config = load_project(make_project(tmp_path, samples=2, shards=1))
    section = config.models["long"]
    first = models.load(config, section, version="1")
    other = models.load(config, section.model_copy(update={"rope_theta": 5e5}), version="1")
    assert other is not first
    assert other.model.config.rope_parameters["rope_theta"] == 5e5


def test_another_place_is_another_load(tmp_path: Path, models: ModelsResource, monkeypatch: pytest.MonkeyPatch) -> None:
    config = load_project(make_project(tmp_path, samples=2, shards=1, scoring={"device": "auto"}))
    asked: list[tuple[str, str | None]] = []

    def load_model(model: object, *, device: str, device_map: str | None, **options: object) -> object:
        asked.append((device, device_map))
        return object()

    monkeypatch.setattr("gateau_dagster.models.loading.load_model", load_model)
    spread = config.model_copy(update={"scoring": config.scoring.model_copy(update={"device_map": "auto"})})
    section = config.models["long"]
    for given, device in ((config, None), (config, None), (config, "cuda:1"), (spread, None)):
        models.load(given, section, version="1", device=device)
    ModelsResource(device="cuda:2").load(config, section, version="1")
    with refused("scoring.device_map", "'cuda:2'"):
        ModelsResource(device="cuda:2").load(spread, section, version="1")
    assert asked == [("auto", None), ("cuda:1", None), ("auto", "auto"), ("cuda:2", None)]


def test_release(tmp_path: Path, models: ModelsResource) -> None:
    config = load_project(make_project(tmp_path, samples=2, shards=1))
    first = models.load(config, config.models["long"], version="1")
    models.release()
    assert models.load(config, config.models["long"], version="1") is not first
