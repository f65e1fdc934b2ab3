"""One model at a time stays loaded: the same one again costs nothing, new weights at the same path are loaded."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from gateau_dagster.config import Config
from gateau_dagster.pipeline.project import load_project
from gateau_dagster.resources.models import ModelsResource
from tests.kit.error_codes import refused
from tests.kit.project import make_project


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return load_project(make_project(tmp_path, samples=2, shards=1))


@pytest.fixture
def models() -> Iterator[ModelsResource]:
    resource = ModelsResource()
    resource.release()
    yield resource
    resource.release()


def test_a_load_serves_many_shards(config: Config, models: ModelsResource) -> None:
    first = models.load(config, config.models["long"], version="1")
    assert ModelsResource().load(config, config.models["long"], version="1") is first, "of another step too"
    assert models.load(config, config.models["long"], version="2") is not first, "new weights"
    short = models.load(config, config.models["short"], version="1")
    assert short.name == "short"
    section = config.models["long"]
    again = models.load(config, section, version="1")
    assert again is not first, "one at a time"
    models.release()
    assert models.load(config, section, version="1") is not again
    other = models.load(config, section.model_copy(update={"rope_theta": 5e5}), version="1")
    assert other.model.config.rope_parameters["rope_theta"] == 5e5


def test_another_place_is_another_load(config: Config, models: ModelsResource, monkeypatch: pytest.MonkeyPatch) -> None:
    config = config.model_copy(update={"scoring": config.scoring.model_copy(update={"device": "auto"})})
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
