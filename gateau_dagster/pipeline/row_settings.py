"""What decides a row of a table that a model computes: the settings of its fingerprint, and of its scorer."""

from typing import Any

from gateau_dagster.config import Config
from gateau_dagster.models.known_model import short_window
from gateau_dagster.pipeline.asset import Observed
from gateau_dagster.scoring.sample_table import SampleTable
from gateau_dagster.storage.fingerprint import fingerprint

# Of these the first decide what fits into memory; a batch that does not fit is halved, whatever its size.
_MEMORY_SETTINGS = {"device", "device_map", "workers"}
OPERATIONAL_SCORING = _MEMORY_SETTINGS | {"batch_tokens", "compile"}


def row_settings(config: Config, table: SampleTable, observed: Observed) -> dict[str, Any]:
    """Settings of the model, as far as the table's rows read the prompt, and of the table itself.

    What a model is that the pipeline makes, the table's upstream says.
    """
    name = table.model
    model, scoring, section = config.models[name], config.scoring, f"models.{name}"
    causal = model.task == "causal"
    return {
        **({f"{section} weights": observed.model_digests[name]} if model.base is None else {}),
        f"{section}.rope_theta": model.rope_theta,
        **({f"{section}.context": model.context} if causal else {}),
        **({f"{section}.opening": model.opening} if table.prompt == "opened" else {}),
        # A model that reads a text as a whole reads no more than its window, whatever `context` says.
        f"{section}.window": model.window if model.context == "window" or not causal else None,
        "scoring.max_length": scoring.max_length,
        **({"scoring.template": scoring.template} if table.prompt != "none" else {}),
        "scoring.dtype": scoring.dtype,
        **(_visible_settings(config) if table.needs_visible_window else {}),
        **table.settings,
    }


def _visible_settings(config: Config) -> dict[str, Any]:
    """What decides which segments are far."""
    return {"models.short.context": config.models["short"].context, "models.short.window": short_window(config)}


def memory_settings(config: Config) -> str:
    """Digest of the settings that decide what fits; they change no result."""
    return fingerprint(config.scoring.model_dump(include=_MEMORY_SETTINGS))
