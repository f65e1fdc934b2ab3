"""Read a model's configuration, tokenizer and weights from a folder or the hub, or raise an error with the reason."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, TypeAlias, TypedDict

import torch
from transformers import AutoConfig, PreTrainedModel, PreTrainedTokenizerBase
from transformers.configuration_utils import PreTrainedConfig

from gateau_dagster.config import ModelConfig
from gateau_dagster.config.models import Dtype
from gateau_dagster.errors import GateauError
from gateau_dagster.models.memory import is_out_of_memory
from gateau_dagster.models.model_files import TOKENIZER_FILES, check_layers
from gateau_dagster.models.tokenizer import load_tokenizer
from gateau_dagster.storage.failures import hub_model_failure

DeviceMap: TypeAlias = Literal["auto"] | None

_HUB_NAME = re.compile(r"^[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?$")


class _Origin(TypedDict):
    revision: str | None
    trust_remote_code: bool


def _origin(config: ModelConfig) -> _Origin:
    """Return the options with which every part of a checkpoint is read."""
    return {"revision": config.revision, "trust_remote_code": config.trust_remote_code}


def resolve_source(path: str, folder: Path) -> str:
    """Return a model folder (relative to `folder`) or a hub name; raise GateauError if the path is neither."""
    local = folder / Path(path).expanduser()
    if local.is_dir():
        if not (local / "config.json").is_file():
            raise GateauError(
                "models.incomplete",
                f"{local} is not a model folder: it has no config.json. Name the folder that contains it",
            )
        return str(local)
    if local.exists():
        raise GateauError(
            "models.no_folder", f"{local} is a file: give a folder with config.json, or a name on the hub"
        )
    if path.startswith((".", "/", "~")) or not _HUB_NAME.match(path):
        raise GateauError("models.no_folder", f"the model folder {local} does not exist: correct models.<name>.path")
    return path


def read_config(config: ModelConfig, source: str) -> PreTrainedConfig:
    """Return the configuration of a model.

    Raises GateauError if config.json is damaged, of an unknown architecture or has more layers than the weights, or if
    the hub cannot be reached.
    """
    try:
        found = AutoConfig.from_pretrained(source, **_origin(config))
    except Exception as error:  # the library, the hub and remote code each raise types of their own
        if source == config.path and not Path(source).is_dir():
            refusal = hub_model_failure(error, place="models", name=source, revision=config.revision)
            if refusal is not None:
                raise refusal from error
            raise GateauError(
                "hub.unavailable",
                f"{source} is not a folder on this machine, and could not be read from the Hugging Face hub (revision "
                f"{config.revision or 'main'}): {_first_line(error)} Check the name, the network and HF_TOKEN.",
            ) from error
        raise GateauError(
            "models.file_damaged", f"{source}: config.json cannot be read: {_first_line(error)}"
        ) from error
    if Path(source).is_dir():
        layers = getattr(found.get_text_config(decoder=True), "num_hidden_layers", None)
        check_layers(Path(source), config.path, layers)
    return found


def read_tokenizer(config: ModelConfig, source: str) -> PreTrainedTokenizerBase:
    """Return the tokenizer; raise GateauError if there is none, or it is damaged."""
    folder = Path(source)
    if folder.is_dir() and not any((folder / name).is_file() for name in TOKENIZER_FILES):
        raise GateauError(
            "models.no_tokenizer", f"{source} has no tokenizer: copy tokenizer.json and tokenizer_config.json into it"
        )
    try:
        return load_tokenizer(source, **_origin(config))
    except Exception as error:  # as above; for a tokenizer.json that holds a list, it asks for the list's keys
        raise GateauError(
            "models.not_loadable", f"{source}: the tokenizer cannot be loaded: {_first_line(error)}"
        ) from error


def read_weights(
    auto: Any,
    config: ModelConfig,
    source: str,
    model_config: PreTrainedConfig,
    *,
    dtype: Dtype,
    device_map: DeviceMap = None,
    may_lack: Sequence[str] = (),
) -> PreTrainedModel:
    """Return the model of `auto`, one of transformers' AutoModel classes, with the checkpoint's weights in `dtype`.

    Raises GateauError for weights that are absent, damaged, not safetensors or too large for memory. A missing tensor
    raises it, too, unless its name begins with one of `may_lack`.
    """
    try:
        model, info = auto.from_pretrained(
            source,
            config=model_config,
            dtype=getattr(torch, dtype),
            device_map=device_map,
            use_safetensors=None if config.trust_remote_code else True,
            output_loading_info=True,
            **_origin(config),
        )
    except Exception as error:  # safetensors, the hub and remote code each raise types of their own
        raise _load_failure(config, error) from error
    missing = sorted(key for key in info["missing_keys"] if not key.startswith(tuple(may_lack)))
    if missing:
        raise GateauError(
            "models.incomplete",
            f"{config.path}: the weights lack {', '.join(missing[:3])}, which would be random: copy the whole "
            f"folder, or take a model saved as a {type(model).__name__}",
        )
    return model


def moved(config: ModelConfig, model: PreTrainedModel, target: torch.device) -> torch.device:
    """Move the model to `target` and return `target`; raise GateauError if it does not fit."""
    try:
        model.to(device=target)  # pyright: ignore[reportCallIssue]
    except (RuntimeError, MemoryError) as error:
        raise _load_failure(config, error) from error
    return target


def _load_failure(config: ModelConfig, error: BaseException) -> GateauError:
    if is_out_of_memory(error):
        return GateauError(
            "models.too_large", f"{config.path} does not fit into memory: use scoring.dtype bfloat16 or a larger device"
        )
    hint = ""
    if "safetensors" in str(error) and not isinstance(error, FileNotFoundError) and not config.trust_remote_code:
        hint = " Only safetensors are read, because a .bin file may hold code: convert it, or set trust_remote_code."
    return GateauError("models.not_loadable", f"{config.path}: the model cannot be loaded: {_first_line(error)}{hint}")


def _first_line(error: BaseException) -> str:
    text = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
    return f"{type(error).__name__}: {text}"
