"""How much of a prompt a model is shown, known from its folder without loading it."""

import json
from pathlib import Path
from typing import Any

import pytest

from gateau_dagster.config import Config
from gateau_dagster.estimate.estimator import estimate
from gateau_dagster.pipeline.state import State

CHARACTERS = 4000  # a thousand tokens, as estimates count


def tokens_of_short(folder: Path, model: dict[str, Any], content: dict[str, Any] | None) -> int:
    """Estimated tokens of `perplexity/short` for one sample of a thousand tokens, a few of them instruction."""
    record = {"id": "a", "context": "c" * (CHARACTERS - 40), "instruction": "i" * 39, "response": "r"}
    (folder / "long.jsonl").write_text(json.dumps(record))
    for name in ("short", "long"):
        (folder / name).mkdir()
        (folder / name / "config.json").write_text(json.dumps(content or {}))
    config = Config.model_validate(
        {
            "folder": folder,
            "long_sft": {"path": "long.jsonl", "shards": 1},
            "models": {"short": {"path": "short", **model}, "long": {"path": "long"}},
            "scoring": {"max_length": 800},
            "training": {"enabled": False},
        }
    )
    state = State(config=config)
    tokens = estimate(state, state.plan())["perplexity/short"].tokens
    assert tokens is not None
    return tokens


@pytest.mark.parametrize(
    ("model", "content", "tokens"),
    [
        ({}, {"max_position_embeddings": 128}, 800),
        ({"context": "window"}, {"max_position_embeddings": 128}, 128),
        ({"context": "window", "window": 64}, {"max_position_embeddings": 128}, 64),
        ({"context": "window"}, {"text_config": {"max_position_embeddings": 96}}, 96),
        ({"context": "window"}, {"max_position_embeddings": 4096}, 800),
        ({"context": "window"}, {}, 800),
    ],
)
def test_a_window_limits_the_tokens(tmp_path: Path, model: dict[str, Any], content: dict[str, Any], tokens: int):
    assert tokens_of_short(tmp_path, model, content) == tokens
