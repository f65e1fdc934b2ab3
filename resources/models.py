"""Provide language models as a Dagster resource: one load serves many shards, and theta_B serves two assets."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import dagster as dg
from pydantic import Field

from gateau_dagster.config import Config, ModelConfig

if TYPE_CHECKING:
    from gateau_dagster.models.loaded import LoadedModel

# The model that this process loaded last. Only one is kept: a second one would rarely fit beside it.
_last: tuple[str, LoadedModel] | None = None


class ModelsResource(dg.ConfigurableResource):
    """Loads the configured models on the configured device."""

    device: str = Field(default="", description="Overrides scoring.device, for example cuda:1; empty leaves it.")

    def place(self, config: Config) -> str:
        """Return the device for this process, in the notation of scoring.device."""
        return self.device or config.scoring.device

    def load(self, config: Config, model: ModelConfig, *, version: str, device: str | None = None) -> LoadedModel:
        """Load a model, and keep it in this process until another one is requested.

        Args:
            config: of the project.
            model: its section, with a real path; it need not be in the configuration (the checkpoint).
            version: digest of the weights, so that new ones at the same path are loaded.
            device: overrides the device of this resource.

        Raises:
            GateauError: the model cannot be loaded; the message says why.
        """
        global _last  # noqa: PLW0603
        from gateau_dagster.models.devices import check_device_map
        from gateau_dagster.models.loading import load_for_task

        dtype, device_map = config.scoring.dtype, config.scoring.device_map
        device = device or self.place(config)
        if device_map is not None:
            check_device_map(device)
        key = f"{config.folder}|{model.model_dump_json()}|{dtype}|{device}|{device_map}|{version}"
        if _last is None or _last[0] != key:
            # Before the next one is loaded, so that both are never in memory at once.
            self.release()
            loaded = load_for_task(model, dtype=dtype, device=device, folder=config.folder, device_map=device_map)
            _last = (key, loaded)
        return _last[1]

    def release(self) -> None:
        """Free the model and the device's memory, for a process that is about to need it."""
        global _last  # noqa: PLW0603
        _last = None
        torch = sys.modules.get("torch")
        if torch is not None and torch.cuda.is_initialized():
            torch.cuda.empty_cache()
