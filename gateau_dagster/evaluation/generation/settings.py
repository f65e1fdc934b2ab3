"""Settings that decide an answer, beside the question and the model."""

from typing import TYPE_CHECKING, Any

from gateau_dagster.config.evaluation import EngineConfig
from gateau_dagster.models.chat_rendering import rendering_settings
from gateau_dagster.storage.stamp import fingerprint

if TYPE_CHECKING:
    from gateau_dagster.config import Config

# Raise it when the same question to the same model gets another answer.
CODE_VERSION = "2"


def generation_settings(config: "Config", frame: tuple[str, str] = ("", "")) -> dict[str, Any]:
    """Return the settings of prompts and engine, without the engine's address.

    frame: the change that the chat template of the trained model makes, from models.chat_rendering.frame_change.
    """
    # Without evaluation.template, models that are not trained here use their own chat template.
    return {**_generation(config), **rendering_settings(config.evaluation.template or "chat", frame)}


def _generation(config: "Config") -> dict[str, Any]:
    evaluation, scoring = config.evaluation, config.scoring
    return {
        "evaluation.template": evaluation.template or f"scoring: {scoring.template}",
        "evaluation.input_length": evaluation.input_length or f"scoring: {scoring.max_length}",
        "evaluation.engine": None if evaluation.engine is None else _engine(evaluation.engine),
        "scoring.dtype": scoring.dtype,
    }


def _engine(engine: EngineConfig) -> Any:
    changed = engine.changed_sampling
    return {"model": engine.model, **changed} if changed else engine.model


def server_means(engine: EngineConfig) -> str:
    """Return a digest of what decides whether a server answers, but not what it answers.

    When the digest changes, rejected questions are asked again (Node.means).
    """
    return fingerprint(engine.model_dump(include={"base_url", "key", "retries", "timeout", "token_limit"}))


def template_of(config: "Config", *, trained_here: bool) -> str:
    """Return the template of a model: the one that it is trained with; for others, their own chat template."""
    return config.evaluation.template or (config.scoring.template if trained_here else "chat")


def answer_scorer(config: "Config", model: str, *, trained_here: bool, frame: tuple[str, str] = ("", "")) -> str:
    """Return the digest of the model and the settings of an answer; each question's digest covers the rest.

    model: digest of the model. frame: as in `generation_settings`.
    """
    template = template_of(config, trained_here=trained_here)
    how = {**_generation(config), "template": template, **rendering_settings(template, frame)}
    return fingerprint({"code": CODE_VERSION, "model": model, "settings": how})
