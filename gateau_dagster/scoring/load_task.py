"""A configured model, loaded for what it is to do."""

from pathlib import Path

from gateau_dagster.config import ModelConfig
from gateau_dagster.config.models import Dtype
from gateau_dagster.scoring import loading
from gateau_dagster.scoring.loading import DeviceMap, LoadedModel


def load_for_task(
    config: ModelConfig, *, dtype: Dtype, device: str, folder: Path, device_map: DeviceMap = None
) -> LoadedModel:
    """A causal model as `loading.load_model` gives it; a reward model or an encoder as `load_encoder` does.

    Raises GateauError as these do.
    """
    if config.task == "causal":
        return loading.load_model(config, dtype=dtype, device=device, folder=folder, device_map=device_map)
    from gateau_dagster.scoring.encoders import load_encoder

    return load_encoder(config, task=config.task, dtype=dtype, device=device, folder=folder)
