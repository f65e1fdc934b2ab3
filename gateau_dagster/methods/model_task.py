"""Whether the configuration has the model that a method asks for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gateau_dagster.config.models import Task

if TYPE_CHECKING:
    from gateau_dagster.config import Config


def check_model(config: Config, model: str, task: Task, *, place: str) -> None:
    """Raises ValueError unless `model`, a name that stands at `place` of the configuration, has this task."""
    if model not in config.models:
        raise ValueError(
            f"{place}: {model!r} is none of models ({', '.join(config.models)}): add it there, with task {task}"
        )
    if config.models[model].task != task:
        raise ValueError(f"{place}: models.{model} has task {config.models[model].task}, but {task} is needed")
