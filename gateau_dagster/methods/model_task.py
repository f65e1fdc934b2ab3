"""Whether the configuration has the model that a method asks for, and shows it enough of a prompt."""

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


def longest_prompt(config: Config, model: str, *, window: int | None) -> tuple[int, str]:
    """Tokens of the longest prompt that a causal model is shown, and what limits them, in words.

    `window`: that of the model, which counts under `context: window`; None: it is not known.
    """
    longest = config.scoring.max_length
    if config.models[model].context == "window" and window is not None and window < longest:
        return window, f"the window of models.{model}, which has context: window,"
    return longest, "scoring.max_length"
