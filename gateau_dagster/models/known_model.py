"""Read what is known of a model before it is loaded: configuration, tokenizer, parameters and window.

A model that the pipeline makes has those of the model that it is made from.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError, safe_open

from gateau_dagster.config import Config
from gateau_dagster.config.inputs import DEMO_SCHEME, demo_shape
from gateau_dagster.errors import GateauError
from gateau_dagster.models.positions import rotary_positions
from gateau_dagster.models.tokenizer import load_tokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase
    from transformers.configuration_utils import PreTrainedConfig


_WHOLE_NUMBERS = ("I", "U", "BOOL")


def check_weight_files(folder: Path, place: str) -> None:
    """Check that each file opens as a whole, and that its weights are floating-point numbers or declared as quantised.

    transformers converts other types to floating-point numbers: weights rounded to 0 and 1 would load without an error.
    Tensors that are not weights, such as masks, may have any type. `place` names the model in messages.

    Raises:
        GateauError: a file is truncated or not safetensors, or holds weights as whole numbers.
    """
    quantised = "quantization_config" in json.loads((folder / "config.json").read_text(encoding="utf-8"))
    for file in sorted(folder.glob("*.safetensors")):
        found = {} if quantised else _whole_numbers(file, place)
        if found:
            name, kind = next(iter(found.items()))
            raise GateauError(
                "models.quantized",
                f"{place}: {file} contains {name} as {kind}; of its weights, {len(found)} have whole numbers. "
                "Save the model in bfloat16 or float32, or add the missing quantization_config to its config.json.",
            )


def _whole_numbers(file: Path, place: str) -> dict[str, str]:
    """Return the types of the weights that are whole numbers, by name. safetensors itself compares header and size."""
    try:
        with safe_open(file, framework="numpy") as weights:
            kinds = {name: str(weights.get_slice(name).get_dtype()) for name in weights.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise GateauError(
            "models.file_damaged",
            f"{place}: {file} cannot be opened as safetensors ({error}). Copy or download the model again (with "
            "git-lfs: git lfs pull).",
        ) from error
    return {name: kind for name, kind in kinds.items() if name.endswith(".weight") and kind.startswith(_WHOLE_NUMBERS)}


_SECONDS_FOR_A_FILE = 3.0


@dataclass(frozen=True, kw_only=True)
class KnownModel:
    """The configuration of a model as it is on this machine; None if it is not here, and then `missing` says why."""

    config: PreTrainedConfig | None
    missing: str = ""


def known_model(config: Config, name: str) -> KnownModel:
    """Return the configuration from a model's folder or the local hub cache; at most config.json is downloaded."""
    name = config.origin(name)
    folder, path = model_folder(config, name), config.models[name].path
    if folder is None:
        return KnownModel(config=None, missing=f"{path} is not on this machine yet")
    from transformers import AutoConfig

    found = _read(AutoConfig.from_pretrained, config, name, folder)
    missing = "" if found is not None else f"the config.json of {path} is not one that transformers can read"
    return KnownModel(config=found, missing=missing)


def known_tokenizer(config: Config, name: str) -> PreTrainedTokenizerBase | None:
    """Return the model's tokenizer if it is on this machine; nothing is downloaded."""
    name = config.origin(name)
    folder = model_folder(config, name, local_only=True)
    # Without a tokenizer file, transformers builds an empty tokenizer instead of failing.
    if folder is None or not [*folder.glob("tokenizer*"), *folder.glob("vocab*")]:
        return None
    return _read(load_tokenizer, config, name, folder)


def own_window(config: Config, name: str) -> int | None:
    """Return `max_position_embeddings` of a model; None if the model is not on this machine yet, or names none.

    A homologous model reads as far as it is trained for, or as far as its base if that is farther.
    """
    homologous = config.models[name].homologous
    if homologous is not None:
        target = homologous.extension.target_length
        assert target is not None
        return max(target, own_window(config, config.origin(name)) or 0)
    folder = model_folder(config, config.origin(name), local_only=True)
    try:
        content = json.loads((folder / "config.json").read_text(encoding="utf-8")) if folder else {}
    except (OSError, ValueError, RecursionError):
        return None
    parts = [content, content.get("text_config")] if isinstance(content, dict) else []
    windows = (part.get("max_position_embeddings") for part in parts if isinstance(part, dict))
    return next((window for window in windows if isinstance(window, int) and window > 0), None)


def known_positions(config: Config, name: str) -> int | None:
    """Return how many positions a model's rotary embedding is made for, see `rotary_positions`.

    Return None also for a model that is not on this machine yet. A homologous model reads as far as it is trained for.
    """
    if config.models[name].is_homologous:
        return own_window(config, name)
    known = known_model(config, name).config
    theta = config.models[config.origin(name)].rope_theta
    return None if known is None else rotary_positions(known, theta)


def parameter_count(config: Config, name: str) -> int | None:
    """Count the parameters of a local model from its safetensors headers; None if it is not on this machine yet.

    Raises:
        GateauError: a file is damaged, or only a pointer to its content.
    """
    folder = config.folder / Path(config.located_model(config.origin(name)).path).expanduser()
    total = 0
    for file in sorted(folder.glob("*.safetensors")):
        try:
            with safe_open(file, framework="numpy") as weights:
                total += sum(math.prod(weights.get_slice(name).get_shape()) for name in weights.keys())  # noqa: SIM118
        except (SafetensorError, OSError) as error:
            raise GateauError(
                "models.file_damaged",
                f"models.{name}.path: {file} is not a safetensors file. Copy or download the model again (with "
                "git-lfs: git lfs pull).",
            ) from error
    return total or None


def model_folder(config: Config, name: str, *, local_only: bool = False) -> Path | None:
    """Return the folder of the model's small files: its own, or the hub's cache after a download of config.json."""
    model = config.located_model(name)
    if config.demo is not None and config.models[name].path.startswith(DEMO_SCHEME):
        # The first run that needs the pair builds it; its configuration and tokenizer are beside the demo's data.
        shape = demo_shape(config.models[name].path, config.work_folder, config.demo)
        assert shape.is_dir(), "the demo's data are written before its models are looked at"
        return shape
    folder = config.folder / Path(model.path).expanduser()
    if folder.is_dir():
        return folder
    from httpx2 import HTTPError
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    for local in (True,) if local_only else (True, False):
        try:
            ask = partial(hf_hub_download, local_files_only=local, etag_timeout=_SECONDS_FOR_A_FILE)
            return Path(ask(model.path, "config.json", revision=model.revision)).parent
        except HFValidationError:
            return None
        except (LocalEntryNotFoundError, HfHubHTTPError, HTTPError, OSError):
            continue
    return None


def _read(read: Callable[..., Any], config: Config, name: str, folder: Path) -> Any:
    """Return a configuration or tokenizer; None if transformers cannot read it."""
    code = config.models[name].trust_remote_code
    try:
        return read(folder, trust_remote_code=code, local_files_only=True)
    except Exception:  # the library and remote code each raise types of their own
        return None


def shown_window(config: Config, name: str) -> int | None:
    """Return a model's window in tokens under `context: window`; None for `full`, or while it is unknown."""
    model = config.models[name]
    if model.context != "window":
        return None
    return model.window or own_window(config, name) or _named_window(config, name)


def short_window(config: Config) -> int | None:
    """Return `shown_window` of theta_A."""
    return shown_window(config, "short")


def visible_tokens(config: Config) -> int | None:
    """Return how many tokens of a prompt's end theta_A is shown; None for all (`context: full`).

    Raises GateauError if it is limited to its window and the window is unknown.
    """
    if config.models["short"].context != "window":
        return None
    window = short_window(config)
    if window is None:
        raise GateauError(
            "models.window",
            f"models.short: context is 'window', but the window of {config.models['short'].path} is unknown: set "
            "models.short.window, in tokens",
        )
    return min(config.scoring.max_length, window)


def _named_window(config: Config, name: str) -> int | None:
    """Return the window of a model without a local folder; its config.json may have to be downloaded."""
    known = known_model(config, name).config
    return None if known is None else getattr(known.get_text_config(decoder=True), "max_position_embeddings", None)
