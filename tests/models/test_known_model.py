"""What theta_A is shown, known from the configuration and its folder."""

import json
from pathlib import Path
from typing import Any

import pytest

from gateau_dagster.config import Config
from gateau_dagster.demo.configuration import embedded_demo
from gateau_dagster.demo.pair import SHORT_WINDOW
from gateau_dagster.demo.prepare import ensure_demo_data
from gateau_dagster.models.known_model import short_window, visible_tokens
from tests.error_codes import refused


def configured(folder: Path, model: dict[str, Any], content: dict[str, Any]) -> Config:
    (folder / "short").mkdir()
    (folder / "short" / "config.json").write_text(json.dumps(content))
    models = {"short": {"path": "short", **model}, "long": {"path": "long"}}
    sections = {"long_sft": {"path": "long.jsonl"}, "models": models, "scoring": {"max_length": 800}}
    return Config.model_validate({"folder": folder, **sections})


@pytest.mark.parametrize(
    ("model", "content", "visible"),
    [
        ({}, {"max_position_embeddings": 128}, None),
        ({"window": 64}, {"max_position_embeddings": 128}, None),  # context: full
        ({"context": "window"}, {"max_position_embeddings": 128}, 128),
        ({"context": "window"}, {"text_config": {"max_position_embeddings": 96}}, 96),
        ({"context": "window", "window": 64}, {"max_position_embeddings": 128}, 64),
        ({"context": "window"}, {"max_position_embeddings": 4096}, 800),
    ],
)
def test_visible_tokens(tmp_path: Path, model: dict[str, Any], content: dict[str, Any], visible: int | None) -> None:
    assert visible_tokens(configured(tmp_path, model, content)) == visible


def test_a_window_that_nothing_names(tmp_path: Path) -> None:
    config = configured(tmp_path, {"context": "window"}, {})
    assert short_window(config) is None
    with refused("models.window", r"models\.short\.window"):
        visible_tokens(config)


def test_the_demo_s_pair_is_known_before_it_is_built(tmp_path: Path) -> None:
    config = embedded_demo(tmp_path)
    ensure_demo_data(config)
    assert short_window(config) == (config.models["short"].window or SHORT_WINDOW)
