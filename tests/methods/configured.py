"""A configuration for the tests of methods."""

from typing import Any

from gateau_dagster.config import Config


def configured(*, models: dict[str, Any] | None = None, **selection: Any) -> Config:
    """A project with this `selection`, and these models beside the pair."""
    pair = {"short": {"path": "a/short", "context": "window", "window": 64}, "long": {"path": "a/long"}}
    content = {"long_sft": {"path": "long.jsonl"}, "models": pair | (models or {}), "selection": selection}
    return Config.model_validate(content)
